"""FedLoGe's local loss: a fixed sparse frame trains the features, and the model's head follows them.

Xiao, Chen, Liu, Feng, Wu, Liu, Zhou, Yang, Liu. FedLoGe: Joint Local and Generic Federated Learning under
Long-tailed Data. ICLR 2024. Sources: ZackZikaiXiao/FedLoGe (the authors' code).

    loss = CE(V f, y) + CE(head(stop-gradient f), y)

V is the static sparse frame (SSE-C): rows of the norm `norm`, the share `sparsity` of whose entries is 0, at
angles as large as that permits. It is never trained; no client can bend it towards its own classes. The model's
own head (their auxiliary head) is trained on features that it does not change.

With the method `fedloge`, which realigns that head, this is the recipe `fedloge`. **Trap:** the norm decides. 0.1
is made for a ResNet and 500 rounds; a small network, whose features are short, needs 1 (`fedloge[loss.norm=1]`),
to which a well-known copy of the code sets it for all. Departures: V is spread apart by 300 larger steps and has
the norm exactly; the heads that clients keep for themselves, for personal models, are left out.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import cross_entropy

from fedwcm.core.batch import Batch, Outputs
from fedwcm.core.frames import sparse_frame
from fedwcm.core.loss import Loss
from fedwcm.core.ranges import BelowOne, Positive
from fedwcm.core.types import Context, State


@dataclass(frozen=True, kw_only=True)
class FedLoGeLoss(Loss):
    """Cross-entropy of a fixed sparse frame, and of the head on detached features.

    Args:
        sparsity: share of the frame's entries that are 0.
        norm: norm of the frame's rows.
    """

    name: ClassVar[str] = "fedloge"

    sparsity: BelowOne = 0.6
    norm: Positive = 0.1

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        features, classes = outputs.features, outputs.logits.shape[-1]
        if not features.numel():
            raise ValueError("the loss fedloge needs a model with a final linear layer that is trained")
        size = classes, features.shape[-1]
        frame = ctx.constant(("fedloge", self), lambda: sparse_frame(*size, self.sparsity, self.norm))
        logits = features @ frame.T, outputs.head(features.detach())
        fixed, own = (cross_entropy(z.mT, batch.labels, reduction="none") for z in logits)
        return batch.mean(fixed + own), o
