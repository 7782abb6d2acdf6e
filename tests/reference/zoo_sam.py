"""Methods whose clients take the gradient at a perturbed point y + e."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .zoo_server import mean_move
from .zoo_shared import SAM_EPS, Cohorts, Federation, Gradient, Vector, ascent, sharpness_aware
from .zoo_variance import run_client_momentum, run_feddyn, run_scaffold


def run_fedsam(
    x0: ArrayLike,
    gradient: Gradient,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    rho: float,
    eps: float = SAM_EPS,
    server_lr: float = 1.0,
    average: str = "uniform",
    **local: Any,
) -> list[Vector]:
    """FedSAM (Qu et al. 2022): FedAvg with y <- y - eta grad(y + e). The mean is uniform."""
    fed = Federation(sizes, cohorts, **local)
    perturbed = sharpness_aware(gradient, rho, eps)

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        return x + server_lr * mean_move(fed, perturbed, r, cohort, eta, x, average)

    return fed.run(x0, one_round)


def run_mofedsam(
    x0: ArrayLike,
    gradient: Gradient,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    rho: float,
    eps: float = SAM_EPS,
    **options: Any,
) -> list[Vector]:
    """MoFedSAM (Qu et al. 2022): FedCM with v = alpha grad(y + e) + (1 - alpha) m. The mean is uniform."""
    perturbed = sharpness_aware(gradient, rho, eps)
    return run_client_momentum(x0, perturbed, sizes, cohorts, **options)


def run_fedgamma(
    x0: ArrayLike,
    gradient: Gradient,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    rho: float,
    eps: float = SAM_EPS,
    **options: Any,
) -> list[Vector]:
    """FedGamma (Dai et al. 2023): SCAFFOLD with v = grad(y + e) + c - c_i. The mean is uniform."""
    return run_scaffold(x0, sharpness_aware(gradient, rho, eps), sizes, cohorts, **options)


def run_fedspeed(
    x0: ArrayLike,
    gradient: Gradient,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    rho: float,
    eps: float = SAM_EPS,
    printed: bool = False,
    **options: Any,
) -> list[Vector]:
    """FedSpeed (Sun et al. 2023) as released: FedDyn with g = grad(y + e). The mean over S is uniform.

    `lam` is 1/lambda of its paper, and the pull to x is at y, not at y + e.
    """
    perturbed = sharpness_aware(gradient, rho, eps)
    if printed:
        return run_fedspeed_box(x0, perturbed, sizes, cohorts, **options)
    return run_feddyn(x0, perturbed, sizes, cohorts, **options)


def run_fedspeed_box(
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
    """FedSpeed's algorithm box, in its own letters: ghat_i, and the mean over S of x_K - ghat_i / lam."""
    fed = Federation(sizes, cohorts, **local)
    ghat = fed.nothing(x0)

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        corrected = {}
        for k in cohort:
            lam_k = lam / fed.relative_size(k) if relative else lam
            y = x.copy()
            for b in range(fed.steps(k)):
                y = y - eta * (gradient(k, r, b, y) - ghat[k] + lam_k * (y - x))
            ghat[k] = ghat[k] - lam_k * (y - x)
            corrected[k] = y - ghat[k] / lam_k
        return x + server_lr * (fed.mean(corrected, average) - x)

    return fed.run(x0, one_round)


def run_fedsmoo(
    x0: ArrayLike,
    gradient: Gradient,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    lam: float,
    rho: float,
    eps: float = SAM_EPS,
    printed: bool = False,
    relative: bool = False,
    server_lr: float = 1.0,
    average: str = "uniform",
    **local: Any,
) -> list[Vector]:
    """FedSMOO (Sun et al. 2023), with the released server rule for s. The mean over S is uniform.

    The mean of the models' duals is over all N clients and that of the perturbations' over S, both plain.
    `relative` and `server_lr` as in FedDyn.
    """
    fed = Federation(sizes, cohorts, **local)
    h, mu = fed.nothing(x0), fed.nothing(x0)
    s = np.zeros(np.shape(x0))
    last = fed.nothing(x0)

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        nonlocal s
        moves = {}
        for k in cohort:
            lam_k = lam / fed.relative_size(k) if relative else lam
            y = x.copy()
            for b in range(fed.steps(k)):
                e = ascent(gradient(k, r, b, y) - mu[k] - s, rho, eps)
                mu[k] = mu[k] + e - s  # every step, after its use
                last[k] = e
                y = y - eta * (gradient(k, r, b, y + e) + lam_k * (y - x) + lam_k * h[k])
            moves[k] = y - x
            h[k] = h[k] + moves[k]
        sent = {k: mu[k] - last[k] if printed else mu[k] for k in cohort}  # the box takes the last e off
        s = ascent(fed.mean(sent), rho, eps)  # s <- rho mubar / ||mubar||
        return x + server_lr * fed.mean(moves, average) + fed.mean(h)  # FedDyn's server

    return fed.run(x0, one_round)
