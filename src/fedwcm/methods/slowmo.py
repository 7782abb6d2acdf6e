"""SlowMo: slow server momentum on the average of the clients.

Wang, Tantia, Ballas, Rabbat. SlowMo: Improving Communication-Efficient Distributed SGD with Slow Momentum. ICLR
2020. Sources: facebookresearch/fairscale (its implementation and defaults).

    u ← beta · u + (x − Σ_k p_k w_k) / lr        in the units of a gradient; lr is the current round's rate
    x ← x − server_lr · lr · u

server_lr is the paper's slow learning rate α, which it recommends leaving at 1; beta = 0 is FedAvg. At a constant
lr this is `fedavgm`. At a decaying one it is not: the momentum accumulates gradients, so earlier rounds are
applied at the current, smaller rate. Pitfall avoided: rescaling the momentum when the rate changes, or dividing by
the rate of another round.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.core.ranges import BelowOne
from fedwcm.core.types import Cohort, State, Uploads, Vec
from fedwcm.methods.fedavgm import FedAvgM


@dataclass(frozen=True, kw_only=True)
class SlowMo(FedAvgM):
    """Server momentum in the units of a gradient.

    Args:
        beta: decay of the momentum per round; 0 is FedAvg.
    """

    name: ClassVar[str] = "slowmo"

    beta: BelowOne = 0.5

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        lr = cohort.base_lr
        momentum = self.beta * s["momentum"] - uploads.sum("delta", self.weights(s, cohort)) / lr
        return x - self.server_lr * lr * momentum, {**s, "momentum": momentum}
