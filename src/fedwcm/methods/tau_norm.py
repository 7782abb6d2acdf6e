"""τ-normalisation: FedAvg whose classifier is evaluated with rows of more equal norms.

Kang, Xie, Rohrbach, Yan, Gordo, Feng, Kalantidis. Decoupling Representation and Classifier for Long-Tailed
Recognition. ICLR 2020. Sources: facebookresearch/classifier-balancing (the authors' code).

    W_c ← r · W_c / ‖W_c‖^tau,      b ← 0

On a long tail, the rows of frequent classes grow longer, and tau takes that back: 0 leaves the weight as it is, 1
makes all rows equally long. Training does not see it. Like post-hoc logit adjustment (`evaluate --adjust`), it
costs nothing; it needs no class counts. The paper chooses tau on validation data.

Departure: r keeps the mean norm of the rows, so that probabilities keep their scale. It changes no prediction.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedwcm.core.ranges import NonNegative
from fedwcm.core.types import State
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.head import EvaluatedHead


@dataclass(frozen=True, kw_only=True)
class TauNorm(EvaluatedHead, FedAvg):
    """FedAvg evaluated with a τ-normalised head.

    Args:
        tau: how far the norms of the rows are made equal: 0 not at all, 1 wholly.
    """

    name: ClassVar[str] = "tau-norm"

    tau: NonNegative = 0.7

    def evaluated_head(self, weight: Tensor, bias: Tensor, s: State) -> tuple[Tensor, Tensor]:
        norms = row_norms(weight)
        scaled = weight / norms**self.tau
        return scaled * (norms.mean() / row_norms(scaled).mean()), torch.zeros_like(bias)


def row_norms(weight: Tensor) -> Tensor:
    """Return the norm of each row, `(C, 1)`, kept from being 0."""
    norms: Tensor = torch.linalg.vector_norm(weight, dim=-1, keepdim=True)
    return norms.clamp(min=torch.finfo(weight.dtype).tiny)
