"""FedDyn: a dynamic penalty on each client, which makes the local optima converge to the global one.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama. Federated Learning Based on Dynamic Regularization. ICLR
2021. Sources: alpemreacar/FedDyn (the authors' code); woodenchild95/FL-Simulator.

    v = g + λ_k (h_k + w − x)                     direction of each local step
    h_k⁺ = h_k + (w_k − x)                        the client's dual: the sum of its increments
    x⁺ = mean_S(w_k) + mean_N(h_k⁺)               over the round's clients S, and over all N clients

All h start at 0. A fixed point has h_k = −∇f_k(x)/λ_k for every client and a mean dual of 0, for any number of
steps per client and any participation: it is the optimum of Σ_k f_k/λ_k. `average` chooses the objective: λ_k = λ
is the unweighted mean over clients; `"samples"` divides λ by the client's relative size n_k/n̄, as the authors'
code does, for the mean weighted by samples (clients far below the mean size then need lr·λ·n̄/n_k < 2).

The server keeps only mean_N(h), which it computes from the increments. At server_lr = 1 the average of the clients
is x − mean_N(h): `eval_model="average"` evaluates it, as the authors report, and `"server"` evaluates x itself.
λ = 0 is FedAvg: without a penalty there is no dual. (The limit λ → 0 of the formulas is different: server momentum
that never decays.) `server_lr` multiplies the mean increment; 1 is the paper's value.

Pitfalls avoided: averaging h over |S| clients; clipping only a part of the direction because the rest is
implemented as weight decay.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedwcm.core.checks import Needs
from fedwcm.core.method import Method, OptimizerRule, mean_weights
from fedwcm.core.ranges import NonNegative
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


@dataclass(frozen=True, kw_only=True)
class FedDyn(Method):
    """A dynamic penalty on every client, and its mean on the server.

    Args:
        lam: λ, strength of the penalty; 0 is FedAvg.
        average: the objective: weight the clients equally, or by their samples (λ over relative size).
        eval_model: evaluate the `server` model, or the `average` of the round's clients.
    """

    name: ClassVar[str] = "feddyn"
    optimizers: ClassVar[OptimizerRule] = OptimizerRule(
        "momentum", "the dual adds up increments until they vanish with the direction, and Adam's steps do not"
    )

    needs: ClassVar[Mapping[str, Needs]] = dict.fromkeys(
        ("average", "eval_model"), Needs(lambda method: method.lam > 0, "lam > 0")
    )

    average: Literal["samples", "uniform"] = "uniform"
    lam: NonNegative = 0.1
    eval_model: Literal["server", "average"] = "server"

    def init(self, x: Vec, population: Population) -> State:
        return {"dual": x.new_zeros(x.shape)}

    def init_client(self, x: Vec, clients: Clients) -> State:
        return {"dual": x.new_zeros(len(clients), len(x))}

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        return grad(w) + self._penalty(ctx) * (c["dual"] + w - ctx.x), c

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        delta = w - ctx.x
        return {"delta": delta}, {}, {**c, "dual": c["dual"] + delta}

    def weights(self, s: State, cohort: Cohort) -> Floats:
        return mean_weights("uniform", cohort)

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        share = 1.0 / cohort.population.clients if self.lam else 0.0
        delta, duals = uploads.sum("delta", np.stack([self.weights(s, cohort), np.full(len(cohort), share)]))
        dual = s["dual"] + duals
        return x + self.server_lr * delta + dual, {**s, "dual": dual}

    def eval_params(self, x: Vec, s: State) -> Vec:
        return x - s["dual"] if self.eval_model == "average" else x

    def _penalty(self, ctx: Context) -> float | Tensor:
        """Return λ_k: one number, or one per client `(K, 1)`."""
        if self.average == "uniform":
            return self.lam
        relative = ctx.clients.samples[:, None] / ctx.population.mean_samples
        return torch.as_tensor(self.lam / relative, dtype=ctx.x.dtype, device=ctx.x.device)
