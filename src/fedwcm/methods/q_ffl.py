"""q-FFL, solved by q-FedAvg: clients on which the model is bad count more.

Li, Sanjabi, Beirami, Smith. Fair Resource Allocation in Federated Learning. ICLR 2020. Sources:
litian96/fair_flearn (the authors' code).

The objective is Σ_k p_k F_k^(q+1) / (q + 1). With F_k the loss of the received model on all of client k's data
and d_k = w_k − x the increment of its ordinary local training:

    x ← x + server_lr · Σ_k p_k F_k^q d_k / Σ_k p_k h_k,        h_k = F_k^q + q F_k^(q−1) ‖d_k‖² / lr

This is the paper's update with its estimate 1/lr of the Lipschitz constant, divided by it. h_k bounds the step, so
that q needs no learning rate of its own. q = 0 is FedAvg. A large q approaches the minimax objective, and steps
become short: try 0.1, 1 and 5. Clients weight their own increments, so the server sees only sums.

Departures: p_k are FedAvg's weights (`average`); the paper draws clients in proportion to their samples and
weights them equally. F_k costs a pass over the client's data, which the authors' code also makes.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.core.batch import LocalData
from fedwcm.core.method import LocalPass
from fedwcm.core.ranges import NonNegative
from fedwcm.core.types import Cohort, Context, Report, State, Uploads, Vec
from fedwcm.methods.fedavg import FedAvg

LEAST_LOSS = 1e-10
"""Stands for a loss of 0, whose powers below 1 have no derivative."""


@dataclass(frozen=True, kw_only=True)
class QFFL(LocalPass, FedAvg):
    """FedAvg with clients weighted by a power of their loss.

    Args:
        q: how strongly clients with a larger loss count more; 0 is FedAvg.
    """

    name: ClassVar[str] = "q-ffl"
    discloses: ClassVar[str] = "their loss on the model that they were sent"

    q: NonNegative = 1.0

    def prepare(self, local: LocalData, ctx: Context) -> State:
        return {"loss_at_x": local.loss(ctx.x.expand(len(ctx.clients), -1))[:, None]}

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        loss, delta = ctx.prepared["loss_at_x"].clamp(min=LEAST_LOSS), w - ctx.x
        curvature = self.q * loss ** (self.q - 1.0) * delta.square().sum(dim=-1, keepdim=True) / ctx.lr
        return {"delta": loss**self.q * delta, "scale": loss**self.q + curvature}, {}, c

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        p = self.weights(s, cohort)
        return x + self.server_lr * uploads.sum("delta", p) / uploads.sum("scale", p), s
