"""pFedMe: each client's own model is the proximal point of its local model, which is what is averaged.

Dinh, Tran, Nguyen. Personalized Federated Learning with Moreau Envelopes. NeurIPS 2020. Sources:
CharlieDinh/pFedMe (the authors' code).

    θ_k ← θ_k − own_lr · (∇F_k(θ_k) + lam · (θ_k − w_k))        `own_steps` times from w_k, on the step's batch
    w_k ← w_k − lr · lam · (w_k − θ_k)                          a gradient step on the Moreau envelope of F_k
    x   ← x + server_lr · Σ_k p_k (w_k − x)                     the authors' β is server_lr

θ_k is the client's own model, with which its accuracy is measured (`client_mean`). lr · lam is the share of the
way from w_k to θ_k that a step takes, and own_lr · lam must stay below 2. Each step takes `own_steps` gradients.

Departure: the authors' θ_k starts in each step where it ended in the step before; here it starts at w_k, so that a
step does not depend on earlier ones.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedwcm.core.checks import require
from fedwcm.core.method import PersonalModels
from fedwcm.core.ranges import Count, Positive
from fedwcm.core.types import Clients, Context, GradientOracle, Layout, State, Vec
from fedwcm.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class PFedMe(PersonalModels, FedAvg):
    """FedAvg of models whose proximal points are the clients' own.

    Args:
        lam: λ, how strongly a client's own model is held at its local model.
        own_steps: gradient steps to a proximal point.
        own_lr: learning rate of these steps.
    """

    name: ClassVar[str] = "pfedme"

    average: Literal["samples", "uniform"] = "uniform"
    lam: Positive = 15.0
    own_steps: Count = 5
    own_lr: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = f"positive and below 2 / lam = {2 / self.lam:g}"
        require(0 < self.own_lr * self.lam < 2, "own_lr", self.own_lr, allowed)

    def init_client(self, x: Vec, clients: Clients) -> State:
        return {"own": x.repeat(len(clients), 1)}

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        own = w
        for _ in range(self.own_steps):
            own = own - self.own_lr * (grad(own) + self.lam * (own - w))
        return self.lam * (w - own), {"own": own}

    def eval_clients(self, x: Vec, s: State, c: State, layout: Layout) -> Vec:
        return c["own"]
