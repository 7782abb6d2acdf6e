"""What every transcription in the `zoo_*` files shares: rounds, local steps, means and perturbations.

The files hold federated methods in plain NumPy, written from their formulas. Tests hold the package to them,
so they share no code with it. Every `run_NAME` returns the global model after each round.
Symbols: x global model, y local iterate, D_k = y_B - x the move of client k, eta the local learning rate of
the round, N clients, S the clients of a round, B_k = E * ceil(n_k / b) local steps, Dbar the mean of D_k.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Vector = NDArray[np.float64]
Gradient = Callable[[int, int, int, Vector], Vector]  # of (client, round, step, y)
FullGradient = Callable[[int, Vector], Vector]  # of (client, x), over all its samples
Cohorts = Sequence[Sequence[int]]
Round = Callable[[int, list[int], float, Vector], Vector]  # of (r, S, eta, x): the next x

SAM_EPS = 1e-7  # added to the norm that a perturbation is divided by


@dataclass(frozen=True)
class Federation:
    """The clients' sizes and the settings of local training that all methods share."""

    sizes: ArrayLike
    cohorts: Cohorts
    local_lr: float
    epochs: int
    batch_size: int
    lr_decay: float = 1.0

    @property
    def n(self) -> NDArray[np.int64]:
        return np.asarray(self.sizes, dtype=np.int64)

    def steps(self, k: int) -> int:
        """B_k."""
        return self.epochs * math.ceil(int(self.n[k]) / self.batch_size)

    def relative_size(self, k: int) -> float:
        """n_k over the mean client size."""
        return float(self.n[k] / self.n.mean())

    def nothing(self, x0: ArrayLike) -> dict[int, Vector]:
        """A zero vector for each of the N clients."""
        return {k: np.zeros(np.shape(x0)) for k in range(len(self.n))}

    def weights(self, cohort: list[int], average: str) -> Vector:
        """1/|S|, or n_k over the samples of S."""
        if average not in ("uniform", "samples"):
            raise ValueError(f"average is {average!r}; allowed: uniform, samples")
        raw = np.ones(len(cohort)) if average == "uniform" else self.n[cohort].astype(np.float64)
        return np.asarray(raw / raw.sum(), dtype=np.float64)

    def mean(self, vectors: dict[int, Vector], average: str = "uniform") -> Vector:
        """The mean over the clients that `vectors` holds."""
        total = np.zeros_like(next(iter(vectors.values())))
        for w_k, v_k in zip(self.weights(list(vectors), average), vectors.values(), strict=True):
            total = total + w_k * v_k
        return total

    def run(self, x0: ArrayLike, one_round: Round) -> list[Vector]:
        """The model after each round; a round without an answer keeps everything, but uses up its lr."""
        x = np.array(x0, dtype=np.float64)
        models = []
        for r, cohort in enumerate(self.cohorts):
            if len(cohort):
                x = one_round(r, [int(k) for k in cohort], self.local_lr * self.lr_decay**r, x)
            models.append(x)
        return models


def ascent(v: Vector, rho: float, eps: float = SAM_EPS) -> Vector:
    """e = rho v / (||v|| + eps), with one norm over the whole vector; 0 for v = 0."""
    norm = float(np.linalg.norm(v)) + eps
    return np.zeros_like(v) if norm == 0 else rho * v / norm


def sharpness_aware(gradient: Gradient, rho: float, eps: float = SAM_EPS) -> Gradient:
    """grad(y + e) with e along grad(y), both on the mini-batch of that step."""

    def perturbed(k: int, r: int, b: int, y: Vector) -> Vector:
        e = ascent(gradient(k, r, b, y), rho, eps)
        return gradient(k, r, b, y + e)

    return perturbed
