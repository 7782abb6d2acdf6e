"""Cross-entropy: the mean negative log-likelihood of the labels."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedwcm.core.loss import Loss, Outputs
from fedwcm.core.types import Context, State
from fedwcm.engine.batches import Batch


@dataclass(frozen=True, kw_only=True)
class CrossEntropy(Loss):
    """−log softmax(z)_y, averaged over the batch."""

    name: ClassVar[str] = "cross_entropy"

    def loss(self, view: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        surprise = cross_entropy(view.logits.flatten(0, 1), batch.labels.flatten(), reduction="none")
        return batch.mean(surprise.view_as(batch.labels)), o

    def closed_form(self, view: Outputs, batch: Batch, ctx: Context) -> tuple[Tensor, Tensor]:
        """The gradient of −log p_y is p, less 1 at y."""
        with torch.no_grad():
            labels = batch.labels[:, None]
            log_p = view.logits.mT.log_softmax(dim=1)  # a softmax along a short last axis is four times slower
            loss = -batch.mean(log_p.gather(1, labels)[:, 0])
            p = log_p.exp_().scatter_add_(1, labels, log_p.new_full(labels.shape, -1.0))
            return loss, batch.share(p.mT)
