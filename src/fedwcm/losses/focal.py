"""Focal loss: well-classified samples have smaller weights.

Lin, Goyal, Girshick, He, Dollár. Focal Loss for Dense Object Detection. ICCV 2017. Sources: kaidic/LDAM-DRW.

    loss = (1 − p_y)^gamma · (−log p_y),     p = softmax(z)

averaged over the batch. gamma = 0 is cross-entropy. The FedWCM paper does not state gamma; 2 is the usual value.
Departures: none. The paper's class weights are a separate loss, `class_weights`.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedwcm.core.batch import Batch, Outputs
from fedwcm.core.loss import Loss
from fedwcm.core.ranges import NonNegative
from fedwcm.core.types import Context, State


@dataclass(frozen=True, kw_only=True)
class Focal(Loss):
    """Cross-entropy times (1 − p_y)^gamma.

    Args:
        gamma: how strongly well-classified samples are down-weighted; 0 is cross-entropy.
    """

    name: ClassVar[str] = "focal"

    gamma: NonNegative = 2.0

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        losses = cross_entropy(outputs.logits.mT, batch.labels, reduction="none")
        # For gamma < 1 the derivative of (1 − p)^gamma is infinite at p = 1; clamping makes it 0 there.
        one_minus_p = -torch.expm1(-losses).clamp(max=-torch.finfo(losses.dtype).tiny)
        return batch.mean(one_minus_p**self.gamma * losses), o
