"""FedProx: FedAvg with a proximal term that keeps each client near the received model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys 2020. Sources:
alpemreacar/FedDyn.

    w ← w − lr · (g + mu (w − x))              each local step: the gradient of f_k + mu/2 ‖w − x‖²
    x ← x + server_lr · Σ_k p_k (w_k − x)      as FedAvg

mu = 0 is FedAvg. The paper tunes mu in powers of ten; 0.1 is what the compared code bases use. Pitfall avoided: if
the term is implemented as weight decay mu plus a linear part, gradient clipping acts on g − mu·x instead of the
whole direction.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.core.ranges import NonNegative
from fedwcm.core.types import Context, GradientOracle, State, Vec
from fedwcm.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term.

    Args:
        mu: weight of the proximal term; 0 is FedAvg.
    """

    name: ClassVar[str] = "fedprox"

    mu: NonNegative = 0.1

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        return grad(w) + self.mu * (w - ctx.x), c
