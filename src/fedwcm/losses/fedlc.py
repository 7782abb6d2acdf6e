"""FedLC: margins from the client's own class counts, so that it does not push down what it rarely sees.

Zhang, Li, Li, Xu, Wu, Ding, Wu. Federated Learning with Label Distribution Skew via Logits Calibration. ICML 2022.
Sources: adap/flower (its baseline `fedlc`).

    loss = CE(z − tau · n^(−1/4), y)            n_c: the client's samples of class c

The model is tested on z. A class that the client does not have is shifted by −100 · tau (n = 1e-8, as in public
code), which takes it out of the softmax. tau = 0 is cross-entropy; the paper tries 0.1 to 1. `ldam` has the same
n^(−1/4), but subtracts it from the true class only.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from fedwcm.core.ranges import NonNegative
from fedwcm.core.types import Context
from fedwcm.losses.class_weights import class_counts
from fedwcm.losses.cross_entropy import MappedCrossEntropy

ABSENT = 1e-8
"""What stands for the count of a class that the client does not have."""


@dataclass(frozen=True, kw_only=True)
class FedLC(MappedCrossEntropy):
    """Cross-entropy of logits calibrated by the client's class counts.

    Args:
        tau: strength of the calibration; 0 is cross-entropy.
    """

    name: ClassVar[str] = "fedlc"

    tau: NonNegative = 1.0

    @property
    def corrects_prior(self) -> bool:
        return self.tau > 0

    def logit_map(self, ctx: Context) -> tuple[Tensor | float, Tensor | float]:
        shift = ctx.constant(
            ("fedlc", self.tau),
            lambda: -self.tau * np.maximum(class_counts("client", ctx), ABSENT)[:, None] ** -0.25,
        )
        return 1.0, shift
