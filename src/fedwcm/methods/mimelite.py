"""MimeLite: local steps with the momentum of a centralised optimiser, held fixed during the round.

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh. Mime: Mimicking Centralized Stochastic Algorithms in
Federated Learning. 2020 (NeurIPS 2021 as Breaking the Centralized Barrier for Cross-Device Federated Learning).
Sources: google/fedjax (its algorithm `mime_lite`).

    v = (1 − beta) g + beta · m                       direction of each local step; m stays as received
    x⁺ = x + server_lr · Σ_k p_k (w_k − x)
    m⁺ = (1 − beta) ḡ + beta · m,   ḡ = Σ_k p_k ∇f_k(x)      full gradients, from all local data at x

The base optimiser is SGD with momentum; m₀ = 0, and beta = 0 is FedAvg. The gradients ∇f_k are computed in a first
phase of the round, one pass over each client's data. It is FedCM with α = 1 − beta and with a momentum of
gradients at x instead of increments. `average="samples"`, as fedjax weights both sums. ∇f_k counts every sample
once, augmented once if training augments, so a balanced sampler, and a loss that is no mean over its samples
(`balancefl`), are refused.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedwcm.core.batch import LocalData
from fedwcm.core.method import Method, OptimizerRule, TwoPhase
from fedwcm.core.ranges import BelowOne
from fedwcm.core.types import Cohort, Context, GradientOracle, Population, State, Uploads, Vec


@dataclass(frozen=True, kw_only=True)
class MimeLite(TwoPhase, Method):
    """Server momentum of full gradients, used in every local step.

    Args:
        beta: share of the momentum in a step, and its decay per round; 0 is FedAvg.
    """

    name: ClassVar[str] = "mimelite"
    uses_full_gradient: ClassVar[bool] = True
    optimizers: ClassVar[OptimizerRule] = OptimizerRule(
        "plain", "the optimizer's state is the server's and must not change during a round"
    )

    beta: BelowOne = 0.9

    def init(self, x: Vec, population: Population) -> State:
        return {"momentum": torch.zeros_like(x)}

    def probe(self, local: LocalData, ctx: Context) -> State:
        return {"gradient": local.gradient(ctx.x.expand(len(ctx.clients), -1))}

    def after_probe(self, s: State, uploads: Uploads, cohort: Cohort) -> State:
        gradient = uploads.sum("gradient", self.weights(s, cohort))
        return {**s, "next": (1.0 - self.beta) * gradient + self.beta * s["momentum"]}

    def broadcast(self, s: State) -> State:
        return {"momentum": s["momentum"]}

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        return (1.0 - self.beta) * grad(w) + self.beta * ctx.message["momentum"], c

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        x, _ = super().update(x, s, uploads, cohort)
        return x, {"momentum": s["next"]}
