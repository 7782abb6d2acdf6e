"""FedProx: a proximal term holds each client near the model that it received.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys 2020. (Read:
the abstract; public code, alpemreacar/FedDyn.)

    w ← w − lr · (g + mu (w − x))              each local step: the gradient of f_k + mu/2 ‖w − x‖²
    x ← x + server_lr · Σ_k p_k (w_k − x)      as FedAvg

mu = 0 is FedAvg. The paper tunes mu in powers of ten; 0.1 is what the compared code bases use. Trap avoided: code
that writes the term as weight decay mu plus a linear part lets gradient clipping act on g − mu·x, not on the
whole direction.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.core.checks import require
from fedwcm.core.types import Context, GradientOracle, State, Vec
from fedwcm.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term.

    Args:
        mu: strength of the pull towards the received model; 0 is FedAvg.
    """

    name: ClassVar[str] = "fedprox"

    mu: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.mu >= 0, "mu", self.mu, "non-negative")

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        return grad(w) + self.mu * (w - ctx.x), c
