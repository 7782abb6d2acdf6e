"""Cross-entropy: the mean negative log-likelihood of the labels."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import cross_entropy

from fedwcm.core.batches import Batch
from fedwcm.core.objective import Objective, View
from fedwcm.core.types import Context, State


@dataclass(frozen=True, kw_only=True)
class CrossEntropy(Objective):
    """−log softmax(z)_y, averaged over the batch."""

    name: ClassVar[str] = "cross_entropy"

    def loss(self, view: View, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        surprise = cross_entropy(view.logits.flatten(0, 1), batch.labels.flatten(), reduction="none")
        return batch.mean(surprise.view_as(batch.labels)), o
