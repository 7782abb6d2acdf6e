"""Methods whose novelty is on the server, and FedProx: a plain client, another use of its move."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .zoo_shared import Cohorts, Federation, Gradient, Vector


def run_fedprox(
    x0: ArrayLike,
    gradient: Gradient,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    mu: float,
    server_lr: float = 1.0,
    average: str = "samples",
    **local: Any,
) -> list[Vector]:
    """FedProx (Li et al. 2020). The mean is over samples as in FedAvg; `average="uniform"` over clients."""
    fed = Federation(sizes, cohorts, **local)

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        moves = {}
        for k in cohort:
            y = x.copy()
            for b in range(fed.steps(k)):
                y = y - eta * (gradient(k, r, b, y) + mu * (y - x))  # of f_k + mu/2 ||y - x||^2
            moves[k] = y - x
        return x + server_lr * fed.mean(moves, average)  # x + eta_g Dbar

    return fed.run(x0, one_round)


def mean_move(
    fed: Federation, gradient: Gradient, r: int, cohort: list[int], eta: float, x: Vector, average: str
) -> Vector:
    """Dbar of clients that run plain SGD."""
    moves = {}
    for k in cohort:
        y = x.copy()
        for b in range(fed.steps(k)):
            y = y - eta * gradient(k, r, b, y)
        moves[k] = y - x
    return fed.mean(moves, average)


def run_fedavgm(
    x0: ArrayLike,
    gradient: Gradient,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    beta: float,
    server_lr: float = 1.0,
    average: str = "uniform",
    **local: Any,
) -> list[Vector]:
    """FedAvgM (Hsu et al. 2019): momentum on the server. The mean is uniform."""
    fed = Federation(sizes, cohorts, **local)
    u = np.zeros(np.shape(x0))

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        nonlocal u
        u = beta * u - mean_move(fed, gradient, r, cohort, eta, x, average)  # u <- beta u - Dbar
        return x - server_lr * u  # x <- x - eta_g u

    return fed.run(x0, one_round)


def run_slowmo(
    x0: ArrayLike,
    gradient: Gradient,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    beta: float,
    slow_lr: float = 1.0,
    average: str = "uniform",
    **local: Any,
) -> list[Vector]:
    """SlowMo (Wang et al. 2019): server momentum in gradient units. The mean is uniform.

    The slow learning rate is the server's, so there is no other.
    """
    fed = Federation(sizes, cohorts, **local)
    u = np.zeros(np.shape(x0))

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        nonlocal u
        x_bar = x + mean_move(fed, gradient, r, cohort, eta, x, average)
        u = beta * u + (x - x_bar) / eta  # u <- beta u + (x - xbar) / gamma, gamma the lr of this round
        return x - slow_lr * eta * u  # x <- x - a gamma u

    return fed.run(x0, one_round)


def run_fedadam(
    x0: ArrayLike,
    gradient: Gradient,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    beta1: float = 0.9,
    beta2: float = 0.99,
    eps: float = 0.01,
    server_lr: float = 0.1,
    average: str = "uniform",
    **local: Any,
) -> list[Vector]:
    """FedAdam (Reddi et al. 2021): both averages start at 0, without bias correction. The mean is uniform."""
    fed = Federation(sizes, cohorts, **local)
    m, v = np.zeros(np.shape(x0)), np.zeros(np.shape(x0))

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        nonlocal m, v
        d_bar = mean_move(fed, gradient, r, cohort, eta, x, average)
        m = beta1 * m + (1 - beta1) * d_bar
        v = beta2 * v + (1 - beta2) * d_bar**2
        return x + server_lr * m / (np.sqrt(v) + eps)  # x <- x + eta_g m / (sqrt v + eps)

    return fed.run(x0, one_round)


def run_fednova(
    x0: ArrayLike,
    gradient: Gradient,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    server_lr: float = 1.0,
    average: str = "samples",
    **local: Any,
) -> list[Vector]:
    """FedNova (Wang et al. 2020): the mean of the directions, times the mean number of steps."""
    fed = Federation(sizes, cohorts, **local)

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        directions = {k: mean_move(fed, gradient, r, [k], eta, x, "uniform") / fed.steps(k) for k in cohort}
        tau = float(fed.weights(cohort, average) @ [fed.steps(k) for k in cohort])
        return x + server_lr * tau * fed.mean(directions, average)

    return fed.run(x0, one_round)


def run_fedexp(
    x0: ArrayLike,
    gradient: Gradient,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    epsilon: float,
    server_lr: float = 1.0,
    average: str = "samples",
    **local: Any,
) -> list[Vector]:
    """FedExP (Jhunjhunwala et al. 2023): eta_g = max(1, mean ||D_k||^2 / (2 (||Dbar||^2 + eps)))."""
    fed = Federation(sizes, cohorts, **local)

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        moves = {k: mean_move(fed, gradient, r, [k], eta, x, "uniform") for k in cohort}
        mean = fed.mean(moves, average)
        spread = sum(p * move @ move for p, move in zip(fed.weights(cohort, average), moves.values(), strict=True))
        return x + server_lr * max(1.0, spread / (2 * (mean @ mean + epsilon))) * mean

    return fed.run(x0, one_round)


def run_q_ffl(
    x0: ArrayLike,
    gradient: Gradient,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    q: float,
    full_loss: Callable[[int, Vector], float],
    server_lr: float = 1.0,
    average: str = "samples",
    **local: Any,
) -> list[Vector]:
    """q-FedAvg (Li et al. 2020, Algorithm 2), with L = 1/eta: x - sum Delta_k / sum h_k."""
    fed = Federation(sizes, cohorts, **local)

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        lipschitz, deltas, bounds = 1 / eta, np.zeros_like(x), 0.0
        for p, k in zip(fed.weights(cohort, average), cohort, strict=True):
            loss = full_loss(k, x)
            step = -lipschitz * mean_move(fed, gradient, r, [k], eta, x, "uniform")  # L (x - w_k)
            deltas = deltas + p * loss**q * step
            bounds += p * (q * loss ** (q - 1) * float(step @ step) + lipschitz * loss**q)
        return x - server_lr * deltas / bounds

    return fed.run(x0, one_round)
