"""The interface of a sampler: the order in which a client visits its samples."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from fedwcm.core.types import Ints


class Sampler(ABC):
    """The order in which a client visits its samples in one epoch."""

    name: ClassVar[str] = ""
    balances_classes: ClassVar[bool] = False

    @abstractmethod
    def epoch(self, labels: Ints, rng: np.random.Generator) -> Ints:
        """Return positions into the client's samples, as many as it has samples."""
