"""FedLoGe's server: FedAvg whose classifier is realigned for evaluation, with rows of equal norms.

Xiao, Chen, Liu, Feng, Wu, Liu, Zhou, Yang, Liu. FedLoGe: Joint Local and Generic Federated Learning under
Long-tailed Data. ICLR 2024. Sources: ZackZikaiXiao/FedLoGe (the authors' code).

    W_c ← head_norm · W_c / ‖W_c‖             for evaluation (the global part of GLA-FR); the bias stays

`--method fedloge` selects this method with the loss `fedloge`, whose fixed sparse frame trains the features; in a
configuration file, `method.name = "fedloge"` needs `loss.name = "fedloge"` next to it. With another loss it is
`tau-norm` with tau = 1 and the bias kept. 1.7 is the number in the authors' code.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedwcm.core.checks import Needs
from fedwcm.core.ranges import Positive
from fedwcm.core.types import State
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.head import EvaluatedHead
from fedwcm.methods.tau_norm import row_norms


@dataclass(frozen=True, kw_only=True)
class FedLoGe(EvaluatedHead, FedAvg):
    """FedAvg evaluated with a realigned head.

    Args:
        realign: whether the head is realigned for evaluation.
        head_norm: norm of the realigned rows.
    """

    name: ClassVar[str] = "fedloge"
    needs: ClassVar[Mapping[str, Needs]] = {"head_norm": Needs(lambda method: method.realign, "realign = true")}

    realign: bool = True
    head_norm: Positive = 1.7

    def evaluated_head(self, weight: Tensor, bias: Tensor, s: State) -> tuple[Tensor, Tensor]:
        return (self.head_norm * weight / row_norms(weight) if self.realign else weight), bias
