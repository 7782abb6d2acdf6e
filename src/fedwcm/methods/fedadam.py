"""FedAdam: the averaged increment is a gradient for Adam on the server.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan. Adaptive Federated Optimization. ICLR 2021. (Read:
public code, woodenchild95/FL-Simulator and Flower's strategy of that name.)

    d = Σ_k p_k (w_k − x)
    m ← beta1 · m + (1 − beta1) · d
    v ← beta2 · v + (1 − beta2) · d²
    x ← x + server_lr · m / (√v + epsilon)

m and v start at 0 and are not corrected for it, as in both code bases: the first steps are damped by m and
magnified by v. epsilon (the paper's τ) is in the units of an increment and large on purpose: parameters that
move less than that a round are not blown up. As epsilon grows and server_lr with it, the rule becomes FedAvg
with a moving average of the increments.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedwcm.core.checks import require
from fedwcm.core.mixins import Momentum
from fedwcm.core.types import Cohort, Ints, Population, State, Uploads, Vec
from fedwcm.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedAdam(Momentum, FedAvg):
    """FedAvg with Adam on the server.

    Args:
        server_lr: step of the server along the scaled increment.
        beta1: what is left of the mean increment after a round.
        beta2: what is left of the mean squared increment after a round.
        epsilon: added to the root of the mean square; larger adapts less.
    """

    name: ClassVar[str] = "fedadam"

    server_lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.beta1 < 1, "beta1", self.beta1, "in [0, 1)")
        require(0 <= self.beta2 < 1, "beta2", self.beta2, "in [0, 1)")
        require(self.epsilon > 0, "epsilon", self.epsilon, "positive")

    def init(self, x: Vec, population: Population) -> State:
        return {"mean": torch.zeros_like(x), "square": torch.zeros_like(x)}

    def starting_gain(self, population: Population, samples: Ints) -> float:
        return self.beta1

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        delta = uploads.sum("delta", self.weights(s, cohort))
        mean = self.beta1 * s["mean"] + (1.0 - self.beta1) * delta
        square = self.beta2 * s["square"] + (1.0 - self.beta2) * delta.square()
        step = mean / (square.sqrt() + self.epsilon)
        return x + self.server_lr * step, {**s, "mean": mean, "square": square}
