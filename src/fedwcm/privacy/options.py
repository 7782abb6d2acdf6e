"""The privacy options, and the noise that a client adds to its counts. Needs neither torch nor TenSEAL."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import ArrayLike

from fedwcm.core.checks import require, require_allowed
from fedwcm.core.ranges import Count, CountOrZero
from fedwcm.privacy.client import MIN_CONTRIBUTORS, require_minimum
from fedwcm.privacy.encoding import MAX_COUNT, Ints, checked_counts
from fedwcm.utils.field_types import Flag

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
    possible = math.isfinite(epsilon) and epsilon >= MIN_EPSILON
    require(possible, "epsilon", epsilon, f"a number of at least {MIN_EPSILON:g}")
    return epsilon


def _discrete_laplace(epsilon: float, size: int, rng: np.random.Generator) -> Ints:
    """Return draws of P(X = j) = (1 − a)/(1 + a) · a^|j|, a = e^(−ε): the difference of two geometric draws."""
    stop = -np.expm1(-epsilon)
    draws = rng.geometric(stop, size) - rng.geometric(stop, size)
    return draws.astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class PrivacyOptions:
    """What clients reveal of their class counts.

    Args:
        mode: `none`, or `he`: gather the class distribution under homomorphic encryption; `none` shows the server
            each client's counts, `he` only their sum, and what is computed from them (FedWCM's score, the distance
            from the target) in levels.
        key_holders: number of keys among which the clients are divided; only for `he`.
        min_contributors: smallest number of clients whose sum is decrypted; only for `he`.
        score_levels: number of values that a client's score, and its distance from the target, can take; 0 for the
            exact ones; only for `he`.
        epsilon: the counts get noise before they are used: a sample more or less has ε-differential privacy, a
            sample that changes its class 2ε; `none` for no noise.
    """

    mode: Annotated[Literal["none", "he"], Flag("privacy")] = "none"
    key_holders: Count = 1
    min_contributors: int = MIN_CONTRIBUTORS
    score_levels: CountOrZero = 8
    epsilon: float | None = None

    def __post_init__(self) -> None:
        require_allowed(self)
        require_minimum(self.min_contributors)
        noise_bound(self.epsilon)

    @property
    def protects(self) -> bool:
        """Whether anything is hidden of a client's counts."""
        return self.mode != "none" or self.epsilon is not None

    @property
    def levels(self) -> int | None:
        """The levels in which statistics are reported; None for exact ones."""
        return self.score_levels or None if self.mode == "he" else None
