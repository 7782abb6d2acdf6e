"""FedRS: a restricted softmax, in which classes that the client does not have count less.

Li, Zhan. FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data. KDD 2021. Sources:
lxcnju/FedRepo (the authors' code).

    loss = CE(a · z, y)
    a_c  = 1 for a class that the client has, alpha for another            `scale="absent"`, the paper
    a_c  = alpha + (1 − alpha) · n_c / max_j n_j                           `scale="share"`, the authors' code

The rows of absent classes are then pushed away alpha times as hard. The model is tested on z. alpha = 1 is
cross-entropy.

**Trap:** the authors' code computes a from a itself in every batch, so that 1 − a_c shrinks by 1 − alpha each time
and nothing is restricted after a few batches. Here a is the same in all batches. Departure: a bias is restricted
like the weights; their classifier has none.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from fedwcm.core.ranges import Share
from fedwcm.core.types import Context, Floats
from fedwcm.losses.class_weights import class_counts
from fedwcm.losses.cross_entropy import MappedCrossEntropy


@dataclass(frozen=True, kw_only=True)
class FedRS(MappedCrossEntropy):
    """Cross-entropy with scaled logits for classes that the client does not have.

    Args:
        alpha: scale of the logits of absent classes; 1 is cross-entropy.
        scale: restrict only `absent` classes, or all by their `share` of the most frequent class.
    """

    name: ClassVar[str] = "fedrs"

    alpha: Share = 0.5
    scale: Literal["absent", "share"] = "absent"

    def logit_map(self, ctx: Context) -> tuple[Tensor | float, Tensor | float]:
        return ctx.constant(("fedrs", self.alpha, self.scale), lambda: self._scales(ctx)[:, None]), 0.0

    def _scales(self, ctx: Context) -> Floats:
        counts = class_counts("client", ctx)
        if self.scale == "absent":
            return np.where(counts > 0, 1.0, self.alpha)
        scales: Floats = self.alpha + (1.0 - self.alpha) * counts / counts.max(axis=1, keepdims=True)
        return scales
