"""Methods whose clients correct their steps: SCAFFOLD, FedDyn, pFedMe, Mime, MimeLite and FedAvg-M."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .zoo_shared import Cohorts, Federation, FullGradient, Gradient, Vector


def run_scaffold(
    x0: ArrayLike,
    gradient: Gradient,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    server_lr: float = 1.0,
    average: str = "uniform",
    controls: str = "uniform",
    **local: Any,
) -> list[Vector]:
    """SCAFFOLD (Karimireddy et al. 2020), option II. The mean of the moves is uniform.

    The server's control variate takes (1/N) times the sum over S whatever `average` is; the package's choice
    for clients that count by their samples, `controls="samples"`, takes n_k / (samples of all N) for 1/N.
    """
    fed = Federation(sizes, cohorts, **local)
    c, c_i = np.zeros(np.shape(x0)), fed.nothing(x0)
    q = fed.weights(list(c_i), controls)  # 1/N

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        nonlocal c
        moves, change = {}, np.zeros_like(x)
        for k in cohort:
            y = x.copy()
            for b in range(fed.steps(k)):
                y = y - eta * (gradient(k, r, b, y) + c - c_i[k])
            moves[k] = y - x
            c_plus = c_i[k] - c + (x - y) / (eta * fed.steps(k))  # option II, with the steps really taken
            change = change + q[k] * (c_plus - c_i[k])
            c_i[k] = c_plus
        c = c + change  # c <- c + (1/N) sum_S (c_i+ - c_i)
        return x + server_lr * fed.mean(moves, average)

    return fed.run(x0, one_round)


def run_pfedme(
    x0: ArrayLike,
    gradient: Gradient,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    lam: float,
    own_lr: float = 0.1,
    own_steps: int = 5,
    server_lr: float = 1.0,
    average: str = "uniform",
    **local: Any,
) -> list[Vector]:
    """pFedMe (Dinh et al. 2020), Algorithm 1: theta by K gradient steps from y, beta is `server_lr`."""
    fed = Federation(sizes, cohorts, **local)

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        moves = {}
        for k in cohort:
            y = x.copy()
            for b in range(fed.steps(k)):
                theta = y.copy()
                for _ in range(own_steps):
                    theta = theta - own_lr * gradient(k, r, b, theta) - own_lr * lam * (theta - y)
                y = y - eta * lam * (y - theta)
            moves[k] = y - x
        beta = server_lr
        return (1.0 - beta) * x + beta * (x + fed.mean(moves, average))

    return fed.run(x0, one_round)


def run_feddyn(
    x0: ArrayLike,
    gradient: Gradient,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    lam: float,
    relative: bool = False,
    server_lr: float = 1.0,
    average: str = "uniform",
    **local: Any,
) -> list[Vector]:
    """FedDyn (Acar et al. 2021), the dual h_i in model units. The mean over S is uniform.

    The mean of the duals is over all N clients whatever `average` is. `relative=True` divides lam by the
    client's relative size, as the authors' code does. The formula has no server step; the package's choice is
    that `server_lr` scales the mean move, and not the duals.
    """
    fed = Federation(sizes, cohorts, **local)
    h = fed.nothing(x0)

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        moves = {}
        for k in cohort:
            lam_k = lam / fed.relative_size(k) if relative else lam
            y = x.copy()
            for b in range(fed.steps(k)):
                y = y - eta * (gradient(k, r, b, y) + lam_k * (h[k] + y - x))
            moves[k] = y - x
            h[k] = h[k] + moves[k]  # h_i <- h_i + D_i
        # x <- mean_S y_i + mean_N h_i, and mean_S y_i = x + mean_S D_i
        return x + server_lr * fed.mean(moves, average) + fed.mean(h)

    return fed.run(x0, one_round)


def run_mime(
    x0: ArrayLike,
    gradient: Gradient,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    full_gradient: FullGradient,
    beta: float,
    server_lr: float = 1.0,
    average: str = "samples",
    full_average: str = "samples",
    control: bool = True,
    **local: Any,
) -> list[Vector]:
    """Mime with SGD and momentum (Karimireddy et al. 2021); MimeLite without its control variate.

    The mean of the moves is over samples. That of the full gradients is so whatever `average` is; the
    package's choice is the same mean for both, hence `full_average`.
    """
    fed = Federation(sizes, cohorts, **local)
    s = np.zeros(np.shape(x0))

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        nonlocal s
        # cbar = sum_S n_k grad f_k(x) / sum_S n_k
        c_bar = fed.mean({k: full_gradient(k, x) for k in cohort}, full_average)
        moves = {}
        for k in cohort:
            y = x.copy()
            for b in range(fed.steps(k)):
                g = gradient(k, r, b, y)
                if control:
                    g = g - gradient(k, r, b, x) + c_bar  # grad(y; z) - grad(x; z) + cbar
                y = y - eta * ((1 - beta) * g + beta * s)  # U(g, s), with s frozen in the round
            moves[k] = y - x
        s = (1 - beta) * c_bar + beta * s  # one step of the optimiser's state, at the old x
        return x + server_lr * fed.mean(moves, average)

    return fed.run(x0, one_round)


def run_mimelite(
    x0: ArrayLike, gradient: Gradient, sizes: ArrayLike, cohorts: Cohorts, **options: Any
) -> list[Vector]:
    """MimeLite: Mime whose clients use their mini-batch gradient as it is. Means as in Mime."""
    return run_mime(x0, gradient, sizes, cohorts, control=False, **options)


def run_client_momentum(
    x0: ArrayLike,
    gradient: Gradient,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    alpha: float,
    server_step: str = "average",
    momentum_norm: str = "exact",
    server_lr: float = 1.0,
    average: str = "uniform",
    **local: Any,
) -> list[Vector]:
    """Clients that mix the global momentum m into each step; m and the step take the same mean, uniform.

    The server moves to the mean of the models (`server_step="average"`, FedCM), or along m itself
    (`"literal"`, FedAvg-M). The steps that m is divided by are those really taken (`momentum_norm="exact"`),
    or E n_bar / b with the mean client size and no ceiling (`"nominal"`).
    """
    fed = Federation(sizes, cohorts, **local)
    m = np.zeros(np.shape(x0))

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        nonlocal m
        moves, directions = {}, {}
        for k in cohort:
            y = x.copy()
            for b in range(fed.steps(k)):
                y = y - eta * (alpha * gradient(k, r, b, y) + (1 - alpha) * m)
            moves[k] = y - x
            q = fed.steps(k) if momentum_norm == "exact" else fed.epochs * fed.n.mean() / fed.batch_size
            directions[k] = (x - y) / (eta * q)
        m = fed.mean(directions, average)  # m <- mean_S (x - y_B) / (eta B_k)
        return x - server_lr * m if server_step == "literal" else x + server_lr * fed.mean(moves, average)

    return fed.run(x0, one_round)


def run_fedavg_cheng(
    x0: ArrayLike, gradient: Gradient, sizes: ArrayLike, cohorts: Cohorts, **options: Any
) -> list[Vector]:
    """FedAvg-M (Cheng et al. 2023): x <- x - gamma m, with `server_lr` for gamma. The mean is uniform."""
    return run_client_momentum(x0, gradient, sizes, cohorts, **{"server_step": "literal", **options})
