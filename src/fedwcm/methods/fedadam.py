"""FedAdam: Adam on the server, with the averaged increment as its gradient.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan. Adaptive Federated Optimization. ICLR 2021.
Sources: woodenchild95/FL-Simulator; adap/flower (its strategy `FedAdam`).

    d = Σ_k p_k (w_k − x)
    m ← beta1 · m + (1 − beta1) · d
    v ← beta2 · v + (1 − beta2) · d²
    x ← x + server_lr · m / (√v + epsilon)

m and v start at 0 without bias correction, as in both code bases: the first steps are damped by m and magnified by
v. epsilon (the paper's τ) has the units of an increment and is deliberately large, so that parameters that move
less than epsilon per round are not amplified. As epsilon and server_lr grow together, the rule approaches FedAvg
with a moving average of the increments.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedwcm.core.ranges import BelowOne, Positive
from fedwcm.core.types import Cohort, Population, State, Uploads, Vec
from fedwcm.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedAdam(FedAvg):
    """FedAvg with Adam on the server.

    Args:
        server_lr: step of the server along the scaled increment.
        beta1: decay of the mean increment per round.
        beta2: decay of the mean squared increment per round.
        epsilon: added to the root of the mean square; larger adapts less.
    """

    name: ClassVar[str] = "fedadam"

    server_lr: Positive = 0.1
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.99
    epsilon: Positive = 0.01

    def init(self, x: Vec, population: Population) -> State:
        return {"mean": torch.zeros_like(x), "square": torch.zeros_like(x)}

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        delta = uploads.sum("delta", self.weights(s, cohort))
        mean = self.beta1 * s["mean"] + (1.0 - self.beta1) * delta
        square = self.beta2 * s["square"] + (1.0 - self.beta2) * delta.square()
        step = mean / (square.sqrt() + self.epsilon)
        return x + self.server_lr * step, {**s, "mean": mean, "square": square}
