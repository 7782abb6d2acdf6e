"""What a partition is."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Partition(Protocol):
    """Splits a labelled data set over clients.

    The call returns one array of indices into `labels` for each client, sorted. No client is empty, no index is in
    two of them, and some may be in none.
    The same generator state gives the same split.
    """

    @property
    def clients(self) -> int:
        """The number of clients."""
        ...

    def __call__(self, labels: NDArray[np.int64], rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """Split the samples over the clients."""
        ...
