"""Local differential privacy: noise that a client adds itself, before it sends anything.

For settings in which even an exact sum, or a client's score, reveals too much. The noise is drawn from the
discrete Laplace distribution, P(X = j) ∝ e^(−ε |j|), on whole numbers: it has none of the gaps between
floating-point numbers through which a real-valued Laplace draw reveals the value.

The guarantee holds for one report. Reports add up: a client that reports n times spends n · ε. It also
requires noise that nobody can predict: outside of tests, draw it from a generator without a fixed seed.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from fedwcm.privacy.encoding import MAX_COUNT, Ints, checked_counts

MIN_EPSILON = 1e-6
"""Below this nothing is left of the value, and the draws are no longer exact."""


MOST_NOISE = 40.0
"""Largest noise that is kept, in units of 1/ε: more has a probability of e⁻⁴⁰."""


def noisy_counts(counts: ArrayLike, epsilon: float, rng: np.random.Generator) -> Ints:
    """Return one client's class counts with ε-differential privacy for each of its samples.

    Sensitivity 1: a sample that is added or removed changes one count by 1. (A sample that changes its class
    changes two, and is protected with 2ε.) The noise of each count has mean 0 and variance 2a/(1 − a)²,
    a = e^(−ε), so counts may be negative. Raised to 0 one by one they would add up to too much; only their sum is.
    All that follows from them, such as a score, is covered by the same ε, however often it is reported.
    """
    exact, most = checked_counts(counts), noise_bound(epsilon)
    noise = _discrete_laplace(_checked_epsilon(epsilon), exact.size, rng)
    noisy: Ints = np.clip(exact + noise, -most, MAX_COUNT - most)
    return noisy


def noise_bound(epsilon: float | None) -> int:
    """Return how far below 0 a noisy count may be; 0 without noise."""
    return 0 if epsilon is None else math.ceil(MOST_NOISE / _checked_epsilon(epsilon))


def _checked_epsilon(epsilon: float) -> float:
    if not (np.isfinite(epsilon) and epsilon >= MIN_EPSILON):
        raise ValueError(f"epsilon must be a number of at least {MIN_EPSILON:g}, not {epsilon!r}")
    return epsilon


def _discrete_laplace(epsilon: float, size: int, rng: np.random.Generator) -> Ints:
    """Draws of P(X = j) = (1 − a)/(1 + a) · a^|j|, a = e^(−ε): the difference of two geometric draws."""
    stop = -np.expm1(-epsilon)
    draws = rng.geometric(stop, size) - rng.geometric(stop, size)
    return draws.astype(np.int64)
