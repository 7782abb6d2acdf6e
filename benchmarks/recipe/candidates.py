"""Candidates that did not earn a place in the package: kept here so that the choice can be repeated."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedwcm.core.batch import Batch, Outputs
from fedwcm.core.loss import LossGradient
from fedwcm.core.types import Clients, Cohort, Context, GradientOracle, Population, Report, State, Uploads, Vec
from fedwcm.losses.prior_ce import PriorCE
from fedwcm.methods.fedcm import FedCM


@dataclass(frozen=True, kw_only=True)
class DeferredPrior(PriorCE):
    """The prior loss with a shift that grows from 0 to tau over the first half of the rounds."""

    name: ClassVar[str] = "deferred_prior"

    def with_gradient(self, outputs: Outputs, batch: Batch, ctx: Context) -> LossGradient:
        grown = min(1.0, 2.0 * ctx.round / ctx.population.rounds)
        return PriorCE.with_gradient(replace(self, tau=grown * self.tau), outputs, batch, ctx)


@dataclass(frozen=True, kw_only=True)
class MomentumDual(FedCM):
    """FedCM's momentum and FedDyn's dual in one step: v = α (g + λ (dual + w − x)) + (1 − α) Δ."""

    name: ClassVar[str] = "momentum_dual"

    lam: float = 0.1

    def init(self, x: Vec, population: Population) -> State:
        return {**super().init(x, population), "dual": x.new_zeros(x.shape)}

    def init_client(self, x: Vec, clients: Clients) -> State:
        return {"dual": x.new_zeros(len(clients), len(x))}

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        alpha = float(ctx.message["alpha"])
        pull = grad(w) + self.lam * (c["dual"] + w - ctx.x)
        return alpha * pull + (1.0 - alpha) * ctx.message["momentum"], c

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        upload, report, c = super().finish(w, c, ctx)
        return upload, report, {**c, "dual": c["dual"] + w - ctx.x}

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        moved, s = super().update(x, s, uploads, cohort)
        share = np.full(len(cohort), 1.0 / cohort.population.clients)
        dual = s["dual"] + uploads.sum("delta", share)
        return moved + dual, {**s, "dual": dual}


class EtfHead(nn.Module):
    """A fixed classifier whose rows are a simplex equiangular tight frame."""

    frame: Tensor

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        basis, _ = torch.linalg.qr(torch.randn(features, classes))
        frame = basis @ (torch.eye(classes) - 1.0 / classes) * (classes / (classes - 1.0)) ** 0.5
        self.register_buffer("frame", frame)

    def forward(self, features: Tensor) -> Tensor:
        normed: Tensor = nn.functional.normalize(features, dim=-1)
        return 10.0 * normed @ self.frame


def etf_mlp(input_shape: tuple[int, ...], classes: int, hidden: int = 100) -> nn.Module:
    """Return a perceptron with a fixed simplex head on normalised features."""
    size = int(np.prod(input_shape))
    return nn.Sequential(nn.Flatten(), nn.Linear(size, hidden), nn.ReLU(), EtfHead(hidden, classes))
