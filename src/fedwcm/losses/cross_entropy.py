"""Cross-entropy: the mean negative log-likelihood of the labels."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedwcm.core.batch import Batch, Outputs
from fedwcm.core.loss import ExplicitLoss, LossGradient
from fedwcm.core.types import Context, Floats


@dataclass(frozen=True, kw_only=True)
class CrossEntropy(ExplicitLoss):
    """−log softmax(z)_y, averaged over the batch. Its gradient is softmax(z), minus 1 at y."""

    name: ClassVar[str] = "cross_entropy"

    def with_gradient(self, outputs: Outputs, batch: Batch, ctx: Context) -> LossGradient:
        return LossGradient(*cross_entropy_with_gradient(outputs.logits.detach(), batch))


def cross_entropy_with_gradient(logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return each client's cross-entropy `(K,)`, and its gradient with respect to the logits `(K, b, C)`."""
    labels = batch.labels[:, None]
    log_p = logits.mT.log_softmax(dim=1)  # a softmax along a short last axis is four times slower
    loss = -batch.mean(log_p.gather(1, labels)[:, 0])
    p = log_p.exp_().scatter_add_(1, labels, log_p.new_full(labels.shape, -1.0))
    return loss, batch.share(p.mT)


def shift_factors(shift: Tensor, ctx: Context) -> Floats:
    """Return the class factors (`Loss.class_factors`) of a shift `(K, 1, C)` or `(1, 1, C)` of the logits.

    A shift of the client's own takes the classes that it does not have out of its softmax.
    """
    factors: Floats = np.exp(-shift[:, 0].cpu().double().numpy())
    return factors if len(factors) == 1 < len(ctx.clients) else np.where(ctx.clients.counts > 0, factors, 0.0)


@dataclass(frozen=True, kw_only=True)
class MappedCrossEntropy(ExplicitLoss):
    """Cross-entropy of `scale · z + shift`, with one number of each per class. A subclass defines `logit_map`."""

    @abstractmethod
    def logit_map(self, ctx: Context) -> tuple[Tensor | float, Tensor | float]:
        """Return the scale and the shift of the logits: numbers, `(K, 1, C)`, or `(1, 1, C)` for all clients."""

    def class_factors(self, ctx: Context) -> Floats | None:
        scale, shift = self.logit_map(ctx)
        if not self.corrects_prior or not isinstance(shift, Tensor) or (torch.as_tensor(scale) != 1.0).any():
            return super().class_factors(ctx)
        return shift_factors(shift, ctx)

    def with_gradient(self, outputs: Outputs, batch: Batch, ctx: Context) -> LossGradient:
        scale, shift = self.logit_map(ctx)
        loss, by_u = cross_entropy_with_gradient(outputs.logits.detach() * scale + shift, batch)
        return LossGradient(loss, by_u.mul_(scale))
