"""FedExP: FedAvg with a server step that grows with the disagreement of the clients.

Jhunjhunwala, Wang, Joshi. FedExP: Speeding Up Federated Averaging via Extrapolation. ICLR 2023. Sources:
Divyansh03/FedExP (the authors' code).

    d   = Σ_k p_k (w_k − x)
    η_g = max(1, Σ_k p_k ‖w_k − x‖² / (2 (‖d‖² + epsilon)))
    x   ← x + server_lr · η_g · d

Increments that point the same way give η_g = 1, which is FedAvg; orthogonal ones of m clients give m/2. Clients
upload the square of their increment's norm next to it, so that the server sees only its sum. The model that is
evaluated is the mean of the last two, as in the paper, because x itself oscillates in some directions.

epsilon has the units of a squared increment. **Trap:** the authors' code multiplies it by the number of clients in
the round and by the square of the learning rate's decay; their 0.001 with 20 clients is 0.02 here.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.core.ranges import Positive
from fedwcm.core.types import Cohort, Context, Population, Report, State, Uploads, Vec
from fedwcm.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedExP(FedAvg):
    """FedAvg with an extrapolated server step.

    Args:
        server_lr: factor on the extrapolated step.
        epsilon: added to the squared norm of the mean increment; larger extrapolates less.
    """

    name: ClassVar[str] = "fedexp"

    epsilon: Positive = 0.001

    def init(self, x: Vec, population: Population) -> State:
        return {"previous": x.clone()}

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        upload, report, c = super().finish(w, c, ctx)
        return {**upload, "square": upload["delta"].square().sum(dim=-1, keepdim=True)}, report, c

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        p = self.weights(s, cohort)
        delta, square = uploads.sum("delta", p), uploads.sum("square", p)
        step = (square / (2.0 * (delta.square().sum() + self.epsilon))).clamp(min=1.0)
        x_next = x + self.server_lr * step * delta
        return x_next, {**s, "previous": x if cohort.round else x_next.clone()}

    def eval_params(self, x: Vec, s: State) -> Vec:
        return (x + s["previous"]) / 2.0
