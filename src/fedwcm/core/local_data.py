"""A client's whole data, as a method or a loss may look at it once a round."""

from collections.abc import Iterator
from typing import Protocol

from fedwcm.core.batch import Batch, Outputs
from fedwcm.core.types import Vec


class LocalData(Protocol):
    """All samples of a block of clients, and the models on them; nothing here trains or updates buffers."""

    def batches(self) -> Iterator[Batch]:
        """Yield every sample once, in order, without augmentation."""
        ...

    def outputs(self, w: Vec, batch: Batch) -> Outputs:
        """Run the models `w (K, P)` on a batch, without gradient."""
        ...

    def gradient(self, w: Vec) -> Vec:
        """Return the gradient of the mean loss over all local samples, at `w (K, P)`."""
        ...
