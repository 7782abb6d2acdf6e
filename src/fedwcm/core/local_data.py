"""Access to all of a client's data, for methods and losses that need it once per round."""

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor

from fedwcm.core.batch import Batch, Outputs
from fedwcm.core.types import Vec


class LocalData(Protocol):
    """All samples of a block of clients, and the models evaluated on them; nothing trains or updates buffers."""

    def batches(self) -> Iterator[Batch]:
        """Yield every sample once, in order, without augmentation."""
        ...

    def outputs(self, w: Vec, batch: Batch) -> Outputs:
        """Run the models `w (K, P)` on a batch, without gradient."""
        ...

    def loss(self, w: Vec) -> Tensor:
        """Return the mean loss over all local samples, `(K,)`, at `w (K, P)`, without augmentation or gradient."""
        ...

    def gradient(self, w: Vec) -> Vec:
        """Return the gradient of the mean loss over all local samples, at `w (K, P)`, augmented as in training."""
        ...
