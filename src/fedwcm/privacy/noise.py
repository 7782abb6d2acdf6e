"""Local differential privacy: noise that a client adds itself, before it sends anything.

For settings in which even an exact sum, or a client's score, reveals too much. The noise is drawn from the
discrete Laplace distribution, P(X = j) ∝ e^(−ε |j|), on whole numbers: it has none of the gaps between
floating-point numbers through which a real-valued Laplace draw reveals the value.

The guarantee holds for one report. Reports add up: a client that reports n times spends n · ε. It also
requires noise that nobody can predict: outside of tests, draw it from a generator without a fixed seed.
"""

import numpy as np
from numpy.typing import ArrayLike

from fedwcm.privacy.encoding import Ints, checked_counts

MIN_EPSILON = 1e-6
"""Below this nothing is left of the value, and the draws are no longer exact."""


def noisy_counts(counts: ArrayLike, epsilon: float, rng: np.random.Generator) -> Ints:
    """One client's class counts with ε-differential privacy for each of its samples.

    Sensitivity 1: a sample that is added or removed changes one count by 1. (A sample that changes its class
    changes two, and is protected with 2ε.) The noise of each count has variance 2a/(1 − a)², a = e^(−ε);
    counts below 0 are then raised to 0, which costs no privacy.
    """
    exact = checked_counts(counts)
    noisy: Ints = np.maximum(exact + _discrete_laplace(_checked_epsilon(epsilon), exact.size, rng), 0)
    return noisy


def nonempty_noisy_counts(counts: ArrayLike, epsilon: float, rng: np.random.Generator) -> Ints:
    """The noisy counts that a client claims in a run; one sample of every class if the noise leaves it none.

    All that follows from them, such as a score, is covered by the same ε, however often it is reported.
    """
    noisy = noisy_counts(counts, epsilon, rng)
    return noisy if noisy.any() else np.ones_like(noisy)


def _checked_epsilon(epsilon: float) -> float:
    if not (np.isfinite(epsilon) and epsilon >= MIN_EPSILON):
        raise ValueError(f"epsilon must be a number of at least {MIN_EPSILON:g}, not {epsilon!r}")
    return epsilon


def _discrete_laplace(epsilon: float, size: int, rng: np.random.Generator) -> Ints:
    """Draws of P(X = j) = (1 − a)/(1 + a) · a^|j|, a = e^(−ε): the difference of two geometric draws."""
    stop = -np.expm1(-epsilon)
    draws = rng.geometric(stop, size) - rng.geometric(stop, size)
    return draws.astype(np.int64)
