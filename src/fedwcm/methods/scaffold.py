"""SCAFFOLD: control variates cancel the drift of each client from the mean of all.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.
ICML 2020. (Read: Algorithm 1 of the paper; public code, woodenchild95/FL-Simulator and alpemreacar/FedDyn.)

    v = g − c_k + c                                    direction of each local step
    c_k⁺ = c_k − c + (x − w_k) / (lr B_k)              option II: the mean gradient along the client's path
    x⁺ = x + server_lr · mean_S (w_k − x)
    c⁺ = c + Σ_S q_k (c_k⁺ − c_k)                      q_k = 1/N: all clients, not those of the round

All c start at 0, so c = Σ_k q_k c_k always. A point at which nothing moves has c_k = ∇f_k(x) for every client and
c = 0, however many steps each takes and whoever takes part: it is the optimum of Σ_k q_k f_k. `average` chooses
that objective: the plain mean over clients (the paper's), or q_k = n_k / Σ n.

Departure: c_k⁺ − c_k = −c − (w_k − x)/(lr B_k), so the server works it out from the increments, and the upload is
one model and not two. The numbers are the same.

Traps of published code that are avoided: c and c_k swapped in the step; B_k taken from one epoch, from client 0,
or as the fraction E·n/b; division by a rate other than the one that the round was trained with; |S| in place of
N; control variates that start as random weights.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedwcm.core.method import Method
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
        average: the objective: every client counts the same, or by its samples.
    """

    name: ClassVar[str] = "scaffold"

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
        control = c["control"] - ctx.message["control"] - delta / (ctx.lr * ctx.steps)
        return {"delta": delta}, {}, {**c, "control": control}

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        q = self._shares(cohort)
        path = cohort.learning_rates * cohort.steps
        delta, gradient = uploads.sum("delta", np.stack([self.weights(s, cohort), -q / path]))
        control = (1.0 - float(q.sum())) * s["control"] + gradient
        return x + self.server_lr * delta, {**s, "control": control}

    def _shares(self, cohort: Cohort) -> Floats:
        """Return q_k of the clients present: what each counts among all clients, which together make 1."""
        clients = cohort.population.clients
        if self.average == "uniform":
            return np.full(len(cohort), 1.0 / clients)
        return cohort.samples / (clients * cohort.population.mean_samples)
