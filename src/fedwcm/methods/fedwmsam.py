"""FedWMSAM: FedCM with control variates, a perturbation guided by the momentum, and an adaptive alpha.

Li, Huang, Jiang, Liu, Xie, Du, Wang, Wu. FedWMSAM: Fast and Flat Federated Learning via Weighted Momentum and
Sharpness-Aware Minimization. NeurIPS 2025. Sources: the paper; Huang-Yongzhi/NeurlPS_FedWMSAM (the authors' code).

    Δ_k = Δ + α/(1 − α) · (c − c_k)                       personal momentum, with SCAFFOLD's control variates
    e = rho · u/‖u‖,   u = x + b Δ_k − w                  after b local steps; one gradient per step
    v = α g(w + e) + (1 − α) Δ_k                          = α (g(w + e) − c_k + c) + (1 − α) Δ
    α⁺ = (1 − λ) α + λ · clip(mean_S d_k, 0.1, 0.9)       d_k = 1 − cos(x − w_k, Δ), λ = `alpha_rate`

Δ and x⁺ are FedCM's (`fedcm.py`), c and c_k SCAFFOLD's (`scaffold.py`). With rho = 0, λ = 0 and a single client,
whose control variates cancel, it is FedCM; with rho = 0 and α → 1 it is SCAFFOLD.

The paper contradicts itself and its code; these are the choices made here. Sign of Δ: gradient-like, since v would
not descend otherwise. Then u of Algorithm 1 points uphill, as in sharpness-aware minimisation, and the first step
of a round has no perturbation. (The text would step away from the model that the momentum predicts, the code would
evaluate at w − rho · u/‖u‖.) Update of alpha: the text names the similarity of the clients' momenta; the code
measures, with the signs written out, how far each client's move disagrees with the momentum. The latter gives the
schedule that both describe: momentum while clients agree, fresh gradients later. Without momentum, in the first
round, d_k = 0.

Pitfalls of the code avoided here: the flat vector u is indexed with the index of a parameter tensor, so that a
whole tensor is shifted by one number; the divisor is E·n/b of client 0 instead of the steps that each client took.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch.nn.functional import cosine_similarity

from fedwcm.core.checks import require
from fedwcm.core.method import OptimizerRule
from fedwcm.core.perturbation import perturbation
from fedwcm.core.ranges import NonNegative, Share
from fedwcm.core.types import (
    Clients,
    Cohort,
    Context,
    Floats,
    GradientOracle,
    Population,
    Report,
    State,
    Uploads,
    Vec,
)
from fedwcm.methods.fedcm import FedCM
from fedwcm.methods.scaffold import SCAFFOLD

LOWEST, HIGHEST = 0.1, 0.9
"""Between these the mean disagreement is clipped before alpha moves towards it."""


@dataclass(frozen=True, kw_only=True)
class FedWMSAM(FedCM, SCAFFOLD):
    """FedCM with a personal momentum that also guides the perturbation.

    Args:
        alpha: α of the first round, the share of the fresh gradient.
        rho: ρ, the length of the perturbation; 0 for none.
        alpha_rate: λ, how fast alpha follows the clients' disagreement with the momentum; 0 keeps alpha fixed.
    """

    name: ClassVar[str] = "fedwmsam"
    optimizers: ClassVar[OptimizerRule] = OptimizerRule(
        "plain", "its perturbation compares the model with where as many plain steps along the momentum would lead"
    )

    rho: NonNegative = 0.01
    alpha_rate: Share = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.alpha < 1, "alpha", self.alpha, "below 1: the personal momentum divides by 1 − alpha")

    def init(self, x: Vec, population: Population) -> State:
        return {**FedCM.init(self, x, population), **SCAFFOLD.init(self, x, population)}

    def init_client(self, x: Vec, clients: Clients) -> State:
        return {**super().init_client(x, clients), "step": x.new_zeros(len(clients), 1)}

    def broadcast(self, s: State) -> State:
        return {**FedCM.broadcast(self, s), **SCAFFOLD.broadcast(self, s)}

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        a = float(ctx.message["alpha"])
        correction = ctx.message["control"] - c["control"]
        momentum = torch.add(ctx.message["momentum"], correction, alpha=a / (1.0 - a))
        e = perturbation(torch.addcmul(ctx.x, momentum, c["step"]).sub_(w), self.rho)
        return a * grad(w + e) + (1.0 - a) * momentum, {**c, "step": c["step"] + 1}

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        upload, report, c = super().finish(w, c, ctx)
        momentum = ctx.message["momentum"]
        cosine = cosine_similarity(ctx.x - w, momentum[None], dim=-1).double().cpu().numpy()
        disagreement = 1.0 - cosine if bool(momentum.any()) else np.zeros(len(w))
        return upload, {**report, "disagreement": disagreement}, {**c, "step": torch.zeros_like(c["step"])}

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        _, s = SCAFFOLD.update(self, x, s, uploads, cohort)
        return FedCM.update(self, x, s, uploads, cohort)

    def next_alpha(self, s: State, cohort: Cohort) -> float:
        # 1 − a cosine, whatever is reported
        disagreement: Floats = np.clip(cohort.report["disagreement"], 0.0, 2.0)
        target = float(np.clip(np.mean(disagreement), LOWEST, HIGHEST))
        return (1.0 - self.alpha_rate) * float(s["alpha"]) + self.alpha_rate * target
