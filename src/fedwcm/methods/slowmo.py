"""SlowMo: slow momentum over the averages of the clients.

Wang, Tantia, Ballas, Rabbat. SlowMo: Improving Communication-Efficient Distributed SGD with Slow Momentum. ICLR
2020. (Read: the abstract; a public summary of its update; fairscale's implementation and its defaults.)

    u ← beta · u + (x − Σ_k p_k w_k) / lr        in the units of a gradient, by the rate of this very round
    x ← x − server_lr · lr · u

server_lr is the paper's slow learning rate α, which it advises to leave at 1; beta = 0 is FedAvg. At a constant
lr this is `fedavgm`. Under a decaying one it is not: the memory is of gradients, so earlier rounds are replayed
at today's smaller rate. Trap avoided: a momentum rescaled when the rate changes, or divided by another round's.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.core.types import Cohort, State, Uploads, Vec
from fedwcm.methods.fedavgm import FedAvgM


@dataclass(frozen=True, kw_only=True)
class SlowMo(FedAvgM):
    """Server momentum in the units of a gradient.

    Args:
        beta: what is left of the momentum after a round; 0 is FedAvg.
    """

    name: ClassVar[str] = "slowmo"

    beta: float = 0.5

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        lr = cohort.base_lr
        momentum = self.beta * s["momentum"] - uploads.sum("delta", self.weights(s, cohort)) / lr
        return x - self.server_lr * lr * momentum, {**s, "momentum": momentum}
