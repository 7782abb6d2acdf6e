"""SCAFFOLD: control variates that cancel each client's drift from the mean over all clients.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.
ICML 2020. Sources: Algorithm 1 of the paper; woodenchild95/FL-Simulator; alpemreacar/FedDyn.

    v = g − c_k + c                                    direction of each local step
    c_k⁺ = c_k − c + (x − w_k) / (lr B_k)              option II: the mean gradient along the client's path
    x⁺ = x + server_lr · mean_S (w_k − x)
    c⁺ = c + Σ_S q_k (c_k⁺ − c_k)                      q_k = 1/N, over all clients, not only the round's

All c start at 0, so that c = Σ_k q_k c_k always holds. A fixed point has c_k = ∇f_k(x) for every client and c = 0,
for any number of steps per client and any participation: it is the optimum of Σ_k q_k f_k. `average` chooses that
objective: the unweighted mean over clients (the paper's), or q_k = n_k / Σ n.

Departure: since c_k⁺ − c_k = −c − (w_k − x)/(lr B_k), the server computes it from the increments, and the upload
is one model instead of two. The numbers are the same.

Pitfalls of published code avoided here: c and c_k swapped in the step; B_k taken from one epoch, from client 0, or
as the fraction E·n/b; division by a rate other than the one that the round was trained with; |S| instead of N;
control variates initialised with random weights.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedwcm.core.method import Method, OptimizerRule
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
class SCAFFOLD(Method):
    """Control variates on the server and on every client.

    Args:
        average: the objective: weight the clients equally, or by their samples.
    """

    name: ClassVar[str] = "scaffold"
    optimizers: ClassVar[OptimizerRule] = OptimizerRule(
        "momentum",
        "a control variate is the increment divided by the path's length, which Adam's steps do not have",
    )

    average: Literal["samples", "uniform"] = "uniform"

    def init(self, x: Vec, population: Population) -> State:
        return {"control": x.new_zeros(x.shape)}

    def init_client(self, x: Vec, clients: Clients) -> State:
        return {"control": x.new_zeros(len(clients), len(x))}

    def broadcast(self, s: State) -> State:
        return {"control": s["control"]}

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        return grad(w) - c["control"] + ctx.message["control"], c

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        delta = w - ctx.x
        control = c["control"] - ctx.message["control"] - delta / ctx.path
        return {"delta": delta}, {}, {**c, "control": control}

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        q = self._shares(cohort)
        delta, gradient = uploads.sum("delta", np.stack([self.weights(s, cohort), -q / cohort.path]))
        control = (1.0 - float(q.sum())) * s["control"] + gradient
        return x + self.server_lr * delta, {**s, "control": control}

    def _shares(self, cohort: Cohort) -> Floats:
        """Return q_k of the round's clients: their weights among all clients, which sum to 1 over all clients."""
        clients = cohort.population.clients
        if self.average == "uniform":
            return np.full(len(cohort), 1.0 / clients)
        return cohort.samples / (clients * cohort.population.mean_samples)
