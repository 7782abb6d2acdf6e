"""VS loss (vector scaling): logits scaled and shifted by class, which unites the two ways to correct for a tail.

Kini, Paraskevas, Oymak, Thrampoulidis. Label-Imbalanced and Group-Sensitive Classification under
Overparameterization. NeurIPS 2021. Sources: orparask/VS-Loss (the authors' code).

    loss = CE((n_c / max_j n_j)^gamma · z_c + tau · log π_c, y)          π_c = n_c / Σ_j n_j

The model is tested on z. The shift acts early in training, the scale in its terminal phase, when the training
error is zero. gamma = 0 is `prior_ce` without its scale (logit adjustment), tau = 0 is the class-dependent
temperature (CDT); both 0 is cross-entropy. A class that the counts do not have counts as half a sample of all
clients' (`prior="global"`), or drops out of the softmax of a client (`prior="client"`). The paper's third part,
weights per class, is the loss `class_weights`. Departures: the paper is about one data set; which counts are meant
is an option.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from fedwcm.balance import ABSENT, prior_shift
from fedwcm.core.checks import Needs
from fedwcm.core.ranges import NonNegative
from fedwcm.core.types import Context, Floats
from fedwcm.losses.class_weights import CountsOf, class_counts
from fedwcm.losses.cross_entropy import MappedCrossEntropy


@dataclass(frozen=True, kw_only=True)
class VS(MappedCrossEntropy):
    """Cross-entropy of logits scaled and shifted by class.

    Args:
        prior: the counts to use: the client's own (`client`), or the sum over all clients (`global`).
        gamma: exponent of the scale; 0 for none.
        tau: strength of the shift; 0 for none.
    """

    name: ClassVar[str] = "vs"
    needs: ClassVar[Mapping[str, Needs]] = {
        "prior": Needs(lambda loss: loss.gamma > 0 or loss.tau > 0, "gamma > 0, or tau > 0"),
    }

    prior: CountsOf = "global"
    gamma: NonNegative = 0.3
    tau: NonNegative = 1.0

    @property
    def corrects_prior(self) -> bool:
        return self.gamma > 0 or self.tau > 0

    def logit_map(self, ctx: Context) -> tuple[Tensor | float, Tensor | float]:
        absent = ABSENT if self.prior == "global" else 0.0
        counts = class_counts(self.prior, ctx)
        scale = ctx.constant(("vs scale", self), lambda: scales(counts, self.gamma, absent)[:, None])
        shift = ctx.constant(("vs shift", self), lambda: prior_shift(counts, None, self.tau, absent)[:, None])
        return scale, shift


def scales(counts: Floats, gamma: float, absent: float) -> Floats:
    """Return the factor on the logit of each class: 1 for the most frequent, less for the others."""
    rows: Floats = (np.maximum(counts, absent) / counts.max(axis=1, keepdims=True)) ** gamma
    return rows
