"""Ditto: FedAvg, and beside it a model for each client that is held near the model of all.

Li, Hu, Beirami, Smith. Ditto: Fair and Robust Federated Learning Through Personalization. ICML 2021. Sources:
litian96/ditto (the authors' code).

    w_k ← w_k − lr · ∇F_k(w_k)                                       from x, in every round: FedAvg
    v_k ← v_k − lr · (∇F_k(v_k) + lam · (v_k − x))                   from where v_k was, on the same batch

v_k is the client's own model: it stays with the client, and is what the accuracies of the clients are measured
with (`client_mean`). lam = 0 is local training alone; a large lam pulls v_k to x, and lr · lam must stay below 2.
Each step takes two gradients.

Departures: the authors may give v_k another number of steps than w_k. Their v_k start at the initial model, here
at the x of the client's first round. They average clients equally, which is `average=uniform` here.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.core.method import OptimizerRule, PersonalModels
from fedwcm.core.ranges import NonNegative
from fedwcm.core.types import Clients, Context, GradientOracle, Layout, State, Vec
from fedwcm.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class Ditto(PersonalModels, FedAvg):
    """FedAvg with a personal model beside it.

    Args:
        lam: λ, how strongly the personal models are pulled to the model of all.
    """

    name: ClassVar[str] = "ditto"
    optimizers: ClassVar[OptimizerRule] = OptimizerRule("plain", "personal models take steps of plain SGD")

    lam: NonNegative = 0.1

    def init_client(self, x: Vec, clients: Clients) -> State:
        return {"own": x.repeat(len(clients), 1)}

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        g, own = grad(w), c["own"]
        return g, {"own": own - ctx.lr * (grad(own) + self.lam * (own - ctx.x))}

    def eval_clients(self, x: Vec, s: State, c: State, layout: Layout) -> Vec:
        return c["own"]
