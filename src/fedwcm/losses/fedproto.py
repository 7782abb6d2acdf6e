"""FedProto's local loss: features are pulled towards the class means of all clients.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang. FedProto: Federated Prototype Learning across Heterogeneous Clients. AAAI
2022. Sources: yuetan031/FedProto (the authors' code).

    loss = CE(z, y) + pull · mean_j (f_j − m_{y,j})²

f are the features of a sample, m_y the mean of its class over the clients of earlier rounds (`methods/fedproto.py`
sends it). A class without a mean, pull = 0, and a method that sends no means: cross-entropy.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedwcm.core.batch import Batch, Outputs
from fedwcm.core.ranges import NonNegative
from fedwcm.core.types import Context, State
from fedwcm.losses.cross_entropy import CrossEntropy


@dataclass(frozen=True, kw_only=True)
class FedProtoLoss(CrossEntropy):
    """Cross-entropy with a pull towards class means.

    Args:
        pull: weight of the squared distance from the mean; 0 is cross-entropy.
    """

    name: ClassVar[str] = "fedproto"

    pull: NonNegative = 1.0

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        loss, o = super().__call__(outputs, batch, o, ctx)
        if not self.pull or "means" not in ctx.message:
            return loss, o
        distances = (outputs.features - ctx.message["means"][batch.labels]).square().mean(dim=-1)
        return loss + self.pull * batch.mean(distances * ctx.message["known"][batch.labels]), o
