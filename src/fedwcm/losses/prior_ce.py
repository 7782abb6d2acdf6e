"""Prior cross-entropy (balanced softmax): the class distribution enters the loss instead of the model.

Ren, Yu, Sheng, Ma, Zhao, Yi, Li. Balanced Meta-Softmax for Long-Tailed Visual Recognition. NeurIPS 2020. Hong,
Han, Choi, Seo, Kim, Chang. Disentangling Label Distribution for Long-tailed Visual Recognition. CVPR 2021.
Sources: sxontheway/BalanceFL.

    loss = CE(z + log(pi + 1e-9), y)

pi is the class distribution: the client's own (`prior="client"`, the "Balance Loss" of FedWCM's tables) or the one
gathered over all clients (`prior="global"`). The model is evaluated on z alone, that is, as if the classes were
balanced. A class that a client does not have drops out of its softmax (its logit is shifted by −20.7), so that the
client does not push it down. A uniform pi is cross-entropy. Departures: none.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedwcm.core.batch import Batch
from fedwcm.core.types import Context
from fedwcm.losses.class_weights import CountsOf, class_counts
from fedwcm.losses.cross_entropy import CrossEntropy

SMALLEST_SHARE = 1e-9
"""Added to every share, so that the logarithm is finite for an absent class."""


@dataclass(frozen=True, kw_only=True)
class PriorCE(CrossEntropy):
    """Cross-entropy of the logits shifted by the log class distribution.

    Args:
        prior: the distribution to use: the client's own (`client`), or that over all clients (`global`).
    """

    name: ClassVar[str] = "prior_ce"

    prior: CountsOf = "client"

    def with_gradient(self, logits: Tensor, batch: Batch, ctx: Context) -> tuple[Tensor, Tensor]:
        counts = class_counts(self.prior, ctx)
        shift = np.log(counts / counts.sum(axis=1, keepdims=True) + SMALLEST_SHARE)[:, None]
        return super().with_gradient(
            logits + torch.as_tensor(shift, dtype=ctx.x.dtype, device=ctx.x.device), batch, ctx
        )
