"""The same class mix everywhere, up to chance."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.partition.checks import check_count, check_labels
from fedwcm.data.partition.dealing import deal_in_order, equal_sizes


@dataclass(frozen=True, kw_only=True)
class IID:
    """Shuffled samples in equal parts: sizes differ by at most one and every sample is used once."""

    clients: int

    def __post_init__(self) -> None:
        check_count("clients", self.clients)

    def __call__(self, labels: NDArray[np.int64], rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """Split the samples over the clients."""
        labels = check_labels(labels, self.clients)
        sizes = equal_sizes(labels.size, self.clients, rng)
        return deal_in_order(rng.permutation(labels.size), np.arange(self.clients), sizes, self.clients)
