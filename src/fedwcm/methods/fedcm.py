"""FedCM: every local step mixes the gradient with the momentum of the previous round.

Xu, Wang, Wang, Yao. FedCM: Federated Learning with Client-level Momentum. 2021. Sources: the FedWCM paper
(`fedwcm.py`), which describes it.

    v = α g + (1 − α) Δ                        direction of each local step
    Δ⁺ = Σ_k p_k (x − w_k) / N_k               gradient-like momentum, from the uploaded increments
    x⁺ = x + server_lr · Σ_k p_k (w_k − x)     `server_step="average"`
    x⁺ = x − server_lr · Δ⁺                    `server_step="literal"`, the text of FedWCM's Algorithm 1

The normaliser N_k must be the length of the client's path, lr_k · B_k with B_k the steps it took
(`momentum_norm="exact"`). Published code divides by lr · E·n̄/b, a fraction (`"nominal"`). The momentum then feeds
back into itself with the gain g = (1 − α) Σ_k p_k lr_k B_k / N_k, and g ≥ 1 makes it diverge, whatever the data.
Δ₀ = 0. Departures: none with the defaults.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from fedwcm.core.method import Method, Momentum, OptimizerRule, RoundMetrics
from fedwcm.core.ranges import PositiveShare
from fedwcm.core.types import Cohort, Context, Floats, GradientOracle, Ints, Population, State, Uploads, Vec


@dataclass(frozen=True, kw_only=True)
class FedCM(Momentum, RoundMetrics, Method):
    """Client-level momentum.

    Args:
        alpha: α, the share of the fresh gradient; 1 is FedAvg.
        momentum_norm: divide by the steps actually taken (`exact`) or by E·n̄/b (`nominal`).
        server_step: average the clients' increments (`average`) or step along the momentum (`literal`).
    """

    name: ClassVar[str] = "fedcm"
    optimizers: ClassVar[OptimizerRule] = OptimizerRule(
        "momentum", "its momentum is the increment divided by the path's length, which Adam's steps do not have"
    )

    average: Literal["samples", "uniform"] = "uniform"
    alpha: PositiveShare = 0.1
    momentum_norm: Literal["exact", "nominal"] = "exact"
    server_step: Literal["average", "literal"] = "average"

    def init(self, x: Vec, population: Population) -> State:
        return {"momentum": torch.zeros_like(x), "alpha": torch.tensor(self.alpha, dtype=torch.float64)}

    def starting_gain(self, population: Population, samples: Ints) -> float:
        if self.momentum_norm == "exact":
            return 1.0 - self.alpha
        path = np.average(self.paths(population, samples), weights=self.usual_weights(samples))
        return (1.0 - self.alpha) * float(path) / population.nominal_steps

    def usual_weights(self, samples: Ints) -> Floats:
        """Return weights as far as the clients' sizes tell them before the first round, up to a factor."""
        return samples.astype(float) if self.average == "samples" else np.ones(len(samples))

    def paths(self, population: Population, samples: Ints) -> Floats:
        """Return the length of each client's path, in steps at the round's learning rate."""
        return population.path(population.local_steps(samples))

    def broadcast(self, s: State) -> State:
        return {"momentum": s["momentum"], "alpha": s["alpha"]}

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        a = float(ctx.message["alpha"])
        return a * grad(w) + (1.0 - a) * ctx.message["momentum"], c

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        p = self.weights(s, cohort)
        delta, momentum = uploads.sum("delta", np.stack([p, -p / self.path_length(cohort)]))
        step = delta if self.server_step == "average" else -momentum
        alpha = torch.tensor(self.next_alpha(s, cohort), dtype=torch.float64)
        return x + self.server_lr * step, {**s, "momentum": momentum, "alpha": alpha}

    def next_alpha(self, s: State, cohort: Cohort) -> float:
        """Return the share of the fresh gradient in the next round."""
        return self.alpha

    def path_length(self, cohort: Cohort) -> Floats:
        """Return N_k, which turns a client's increment into a gradient when divided by."""
        if self.momentum_norm == "exact":
            return cohort.path
        return np.full(len(cohort), cohort.base_lr * cohort.population.nominal_steps)

    def metrics(self, s: State, cohort: Cohort) -> dict[str, float]:
        alpha = float(s["alpha"])
        ratio = cohort.path / self.path_length(cohort)
        return {"alpha": alpha, "gain": (1.0 - alpha) * float(np.dot(self.weights(s, cohort), ratio))}
