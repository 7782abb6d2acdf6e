"""FedAvgM: FedAvg with momentum on the server.

Hsu, Qi, Brown. Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification.
2019. Sources: adap/flower (its strategy `FedAvgM`).

    u ← beta · u − Σ_k p_k (w_k − x)
    x ← x − server_lr · u

u starts at 0 and has the units of the parameters, so the momentum's share of a step does not shrink when the local
rate decays; `slowmo` is the same rule in the units of a gradient. beta = 0 is FedAvg; the paper tries values up to
0.997. At beta = 0.9 the step along a persistent direction grows tenfold: if that is too far, lower `server_lr`.
Not to be confused with `fedavg-cheng`, whose momentum enters the clients' steps.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedwcm.core.ranges import BelowOne
from fedwcm.core.types import Cohort, Population, State, Uploads, Vec
from fedwcm.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedAvgM(FedAvg):
    """FedAvg with server momentum.

    Args:
        beta: decay of the momentum per round; 0 is FedAvg.
    """

    name: ClassVar[str] = "fedavgm"

    beta: BelowOne = 0.9

    def init(self, x: Vec, population: Population) -> State:
        return {"momentum": torch.zeros_like(x)}

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        momentum = self.beta * s["momentum"] - uploads.sum("delta", self.weights(s, cohort))
        return x - self.server_lr * momentum, {**s, "momentum": momentum}
