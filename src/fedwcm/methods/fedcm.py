"""FedCM: every local step mixes the gradient with the momentum of the previous round.

Xu, Wang, Wang, Yao. FedCM: Federated Learning with Client-level Momentum. 2021. (Read: FedWCM's account of it
and public descriptions of the code that this family of methods shares.)

    v = α g + (1 − α) Δ                        direction of each local step
    Δ⁺ = Σ_k p_k (x − w_k) / N_k               gradient-like momentum, from the increments that were sent
    x⁺ = x + server_lr · Σ_k p_k (w_k − x)     `server_step="average"`
    x⁺ = x − server_lr · Δ⁺                    `server_step="literal"`, the text of FedWCM's Algorithm 1

The normaliser N_k must be the length of the client's path, lr_k · B_k with B_k the steps it took
(`momentum_norm="exact"`). Published code divides by lr · E·n̄/b, a fraction (`"nominal"`): then the momentum
feeds itself with the gain g = (1 − α) Σ_k p_k lr_k B_k / N_k, and g ≥ 1 is a blow-up that no data can cause
or cure. Δ₀ = 0. Departures: none with the defaults.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from fedwcm.balance import momentum_gain
from fedwcm.core.checks import require
from fedwcm.core.method import Method
from fedwcm.core.types import (
    Cohort,
    Combination,
    Context,
    Floats,
    Ints,
    Population,
    Report,
    State,
    Vec,
)
from fedwcm.engine.fast.affine_step import Blend


@dataclass(frozen=True, kw_only=True)
class FedCM(Method):
    """Client-level momentum.

    Args:
        alpha: α, the share of the fresh gradient; 1 is FedAvg.
        momentum_norm: divide by the steps that were taken (`exact`) or by E·n̄/b (`nominal`).
        server_step: average the clients' increments (`average`) or step along the momentum (`literal`).
    """

    name: ClassVar[str] = "fedcm"

    average: Literal["samples", "uniform"] = "uniform"
    alpha: float = 0.1
    momentum_norm: Literal["exact", "nominal"] = "exact"
    server_step: Literal["average", "literal"] = "average"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.alpha <= 1, "alpha", self.alpha, "in (0, 1]")

    def init(self, x: Vec, population: Population, survey: Report) -> State:
        return {"momentum": torch.zeros_like(x), "alpha": torch.tensor(self.alpha, dtype=torch.float64)}

    def starting_gain(self, population: Population, samples: Ints) -> float | None:
        if self.momentum_norm == "exact":
            return 1.0 - self.alpha
        return momentum_gain(self.alpha, samples, population.batch_size)

    def message(self, s: State, probed: State) -> State:
        return {"momentum": s["momentum"], "alpha": s["alpha"]}

    def blend(self, c: State, ctx: Context) -> Blend:
        alpha = float(ctx.message["alpha"])
        return Blend(alpha, (1.0 - alpha) * ctx.message["momentum"])

    def combine(self, s: State, cohort: Cohort) -> dict[str, Combination]:
        weights = self.weights(s, cohort)
        return {
            "delta": Combination("delta", weights),
            "momentum": Combination("delta", -weights / self._normaliser(cohort)),
        }

    def update(self, x: Vec, s: State, agg: State, cohort: Cohort) -> tuple[Vec, State]:
        step = agg["delta"] if self.server_step == "average" else -agg["momentum"]
        alpha = torch.tensor(self.next_alpha(s, cohort), dtype=torch.float64)
        return x + self.server_lr * step, {**s, "momentum": agg["momentum"], "alpha": alpha}

    def next_alpha(self, s: State, cohort: Cohort) -> float:
        """The share of the fresh gradient in the next round."""
        return self.alpha

    def diagnostics(self, s: State, cohort: Cohort) -> dict[str, float]:
        alpha = float(s["alpha"])
        path = cohort.learning_rates * cohort.steps / self._normaliser(cohort)
        return {"alpha": alpha, "gain": (1.0 - alpha) * float(np.dot(self.weights(s, cohort), path))}

    def _normaliser(self, cohort: Cohort) -> Floats:
        if self.momentum_norm == "exact":
            return cohort.learning_rates * cohort.steps
        return np.full(len(cohort), cohort.base_lr * cohort.population.nominal_steps)
