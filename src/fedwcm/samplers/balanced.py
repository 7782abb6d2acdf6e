"""Class-balanced sampling with replacement: the "Balance Sampler" of FedWCM's tables.

Sources: sxontheway/BalanceFL.

A sample of class c is drawn with probability 1 / (C_k · n_kc), where C_k is the number of classes that the client
has and n_kc its number of samples of class c. An epoch has as many draws as the client has samples, so that the
number of local steps does not change. With `cap`, balanced draws are mixed with plain ones so that no sample is
drawn more than that many times an epoch on average: five samples of a class are not repeated four hundred times.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedwcm.core.batch import Sampler
from fedwcm.core.ranges import AtLeastOne
from fedwcm.core.types import Ints


@dataclass(frozen=True, kw_only=True)
class Balanced(Sampler):
    """Draws with replacement, equally likely from each class that the client has.

    Args:
        cap: most draws of a sample in an epoch, on average; 1 does not balance, `none` balances completely.
    """

    name: ClassVar[str] = "balanced"
    balances_classes: ClassVar[bool] = True

    cap: AtLeastOne | None = None

    def epoch(self, labels: Ints, rng: np.random.Generator) -> Ints:
        counts = np.bincount(labels)
        odds = 1.0 / counts[labels]
        if self.cap is not None:
            draws = len(labels) / np.count_nonzero(counts) * odds  # of each sample, in a balanced epoch
            share = min(1.0, (self.cap - 1.0) / max(draws.max() - 1.0, 1e-12))
            odds = share * draws + (1.0 - share)
        return rng.choice(len(labels), size=len(labels), p=odds / odds.sum())
