"""Class-balanced sampling with replacement: the "Balance Sampler" of FedWCM's tables.

Sources: sxontheway/BalanceFL.

A sample of class c is drawn with probability 1 / (C_k · n_kc), where C_k is the number of classes that the client
has and n_kc its number of samples of class c. An epoch has as many draws as the client has samples, so that the
number of local steps does not change.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedwcm.core.sampler import Sampler
from fedwcm.core.types import Ints


@dataclass(frozen=True, kw_only=True)
class Balanced(Sampler):
    """Draws with replacement, equally likely from each class that the client has."""

    name: ClassVar[str] = "balanced"
    balances_classes: ClassVar[bool] = True

    def epoch(self, labels: Ints, rng: np.random.Generator) -> Ints:
        odds = 1.0 / np.bincount(labels)[labels]
        return rng.choice(len(labels), size=len(labels), p=odds / odds.sum())
