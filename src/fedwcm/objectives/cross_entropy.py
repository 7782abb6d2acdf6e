"""Cross-entropy: the mean negative log-likelihood of the labels."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import log_softmax

from fedwcm.core.batches import Batch
from fedwcm.core.objective import Objective, View
from fedwcm.core.types import Context, State


@dataclass(frozen=True, kw_only=True)
class CrossEntropy(Objective):
    """−log softmax(z)_y, averaged over the batch."""

    name: ClassVar[str] = "cross_entropy"

    def loss(self, view: View, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        likelihood = log_softmax(view.logits, dim=-1).gather(-1, batch.labels[..., None])
        return -batch.mean(likelihood[..., 0]), o
