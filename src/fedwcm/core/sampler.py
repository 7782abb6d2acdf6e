"""The interface of a sampler: the order in which a client visits its samples."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from fedwcm.core.types import Floats, Ints


class Sampler(ABC):
    """The order in which a client visits its samples in one epoch."""

    name: ClassVar[str] = ""
    balances_classes: ClassVar[bool] = False

    def batch_shares(self, counts: Ints) -> Floats:
        """Return the shares of the classes in the batches of clients with these counts, `(K, C)`."""
        drawn = counts > 0 if self.balances_classes else counts
        shares: Floats = drawn / drawn.sum(axis=1, keepdims=True)
        return shares

    @abstractmethod
    def epoch(self, labels: Ints, rng: np.random.Generator) -> Ints:
        """Return positions into the client's samples, as many as it has samples."""
