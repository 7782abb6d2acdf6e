"""Focal loss: samples that the model already gets right count less.

Lin, Goyal, Girshick, He, Dollár. Focal Loss for Dense Object Detection. ICCV 2017. (Read: this project's notes
and public code, kaidic/LDAM-DRW.)

    loss = (1 − p_y)^gamma · (−log p_y),     p = softmax(z)

averaged over the batch. gamma = 0 is cross-entropy. FedWCM's paper names no gamma; 2 is the usual one.
Departures: none. The paper's class weights are `class_weights`, an objective of its own.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedwcm.core.batch import Batch, Outputs
from fedwcm.core.checks import require
from fedwcm.core.loss import Loss
from fedwcm.core.types import Context, State


@dataclass(frozen=True, kw_only=True)
class Focal(Loss):
    """Cross-entropy times (1 − p_y)^gamma.

    Args:
        gamma: how much less a sample counts that is classified well; 0 is cross-entropy.
    """

    name: ClassVar[str] = "focal"

    gamma: float = 2.0

    def __post_init__(self) -> None:
        require(self.gamma >= 0, "gamma", self.gamma, "non-negative")

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        surprise = cross_entropy(outputs.logits.mT, batch.labels, reduction="none")
        # The slope of (1 − p)^gamma is infinite at p = 1 for gamma < 1: a clamped value has slope 0 there.
        missed = -torch.expm1(-surprise).clamp(max=-torch.finfo(surprise.dtype).tiny)
        return batch.mean(missed**self.gamma * surprise), o
