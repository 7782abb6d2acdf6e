"""FedLESAM (Fan et al. 2024) and its variants: the perturbation is the global model's own last way.

e = rho (x_prev - x) / ||x_prev - x||, the same for all steps of a round, and 0 where no x_prev is known.
`memory="client"`, the paper: x_prev is the model that the client received when it was last active.
`memory="server"`, the released code: x_prev is the model before the last update, for everybody.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .zoo_shared import SAM_EPS, Cohorts, Federation, Gradient, Vector, ascent


class Memory:
    """Who remembers which global model."""

    def __init__(self, memory: str, rho: float, eps: float) -> None:
        if memory not in ("client", "server"):
            raise ValueError(f"memory is {memory!r}; allowed: client, server")
        self.shared, self.rho, self.eps = memory == "server", rho, eps
        self.seen: dict[int, Vector] = {}
        self.before: Vector | None = None

    def perturbation(self, k: int, x: Vector) -> Vector:
        x_prev = self.before if self.shared else self.seen.get(k)
        return np.zeros_like(x) if x_prev is None else ascent(x_prev - x, self.rho, self.eps)

    def remember(self, cohort: list[int], x: Vector) -> None:
        """x was sent to the cohort, and is about to change."""
        self.before = x
        for k in cohort:
            self.seen[k] = x


def run_fedlesam(
    x0: ArrayLike,
    gradient: Gradient,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    rho: float,
    memory: str = "client",
    eps: float = SAM_EPS,
    server_lr: float = 1.0,
    average: str = "uniform",
    **local: Any,
) -> list[Vector]:
    """FedLESAM: FedAvg with y <- y - eta grad(y + e). The mean is uniform."""
    fed, known = Federation(sizes, cohorts, **local), Memory(memory, rho, eps)

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        moves = {}
        for k in cohort:
            e = known.perturbation(k, x)
            y = x.copy()
            for b in range(fed.steps(k)):
                y = y - eta * gradient(k, r, b, y + e)
            moves[k] = y - x
        known.remember(cohort, x)
        return x + server_lr * fed.mean(moves, average)

    return fed.run(x0, one_round)


def run_fedlesam_s(
    x0: ArrayLike,
    gradient: Gradient,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    rho: float,
    memory: str = "client",
    eps: float = SAM_EPS,
    server_lr: float = 1.0,
    average: str = "uniform",
    controls: str = "uniform",
    **local: Any,
) -> list[Vector]:
    """FedLESAM-S: with SCAFFOLD's c - c_i, in full (released: a tenth). The mean of the moves is uniform.

    `controls` as in SCAFFOLD.
    """
    fed, known = Federation(sizes, cohorts, **local), Memory(memory, rho, eps)
    c, c_i = np.zeros(np.shape(x0)), fed.nothing(x0)
    q = fed.weights(list(c_i), controls)

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        nonlocal c
        moves, change = {}, np.zeros_like(x)
        for k in cohort:
            e = known.perturbation(k, x)
            y = x.copy()
            for b in range(fed.steps(k)):
                y = y - eta * (gradient(k, r, b, y + e) + c - c_i[k])
            moves[k] = y - x
            c_plus = c_i[k] - c + (x - y) / (eta * fed.steps(k))
            change = change + q[k] * (c_plus - c_i[k])
            c_i[k] = c_plus
        c = c + change
        known.remember(cohort, x)
        return x + server_lr * fed.mean(moves, average)

    return fed.run(x0, one_round)


def run_fedlesam_d(
    x0: ArrayLike,
    gradient: Gradient,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    lam: float,
    rho: float,
    memory: str = "client",
    eps: float = SAM_EPS,
    relative: bool = False,
    server_lr: float = 1.0,
    average: str = "uniform",
    **local: Any,
) -> list[Vector]:
    """FedLESAM-D: with FedDyn's dual and server. The mean over S is uniform, the duals' over all N plain.

    `relative` and `server_lr` as in FedDyn.
    """
    fed, known = Federation(sizes, cohorts, **local), Memory(memory, rho, eps)
    h = fed.nothing(x0)

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        moves = {}
        for k in cohort:
            e = known.perturbation(k, x)
            lam_k = lam / fed.relative_size(k) if relative else lam
            y = x.copy()
            for b in range(fed.steps(k)):
                y = y - eta * (gradient(k, r, b, y + e) + lam_k * (h[k] + y - x))
            moves[k] = y - x
            h[k] = h[k] + moves[k]
        known.remember(cohort, x)
        return x + server_lr * fed.mean(moves, average) + fed.mean(h)

    return fed.run(x0, one_round)
