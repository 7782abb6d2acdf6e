"""Long-tailed subsets of a labelled data set.

The imbalance factor is n_min / n_max, so 1 is balanced and 0.01 means a hundred head samples for each
sample of the rarest class. Class 0 is the head and the counts fall in label order.
"""

import warnings
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedwcm.core.checks import require, shorten, unknown

Profile = Literal["exponential", "step"]

NOTICEABLE = 2
"""Times the imbalance that is asked for, above which what comes out is warned of."""

# n_max * imbalance**(c / (C - 1)) is often a whole number that floating point leaves a hair too small.
_ROUNDING_GUARD = 1 + 1e-12


def class_counts(
    available: NDArray[np.int64],
    imbalance: float,
    profile: Profile = "exponential",
    n_max: int | None = None,
) -> NDArray[np.int64]:
    """Return how many samples each class keeps.

    `exponential` keeps floor(n_max * imbalance^(c / (C - 1))) samples of class c. `step` keeps n_max of
    each class in the first half (the larger half if C is odd) and floor(n_max * imbalance) of the others.
    Every class keeps at least one sample, which is the only case where the ratio can exceed `imbalance`.

    `n_max` defaults to the largest number for which every class in `available` can supply its share, so
    the profile is exact whatever the native counts are.
    """
    shares = _class_shares(available.size, imbalance, profile)
    if n_max is None:
        return _scale_shares(shares, _largest_n_max(available, shares))
    require(n_max >= 1, "n_max", n_max, "at least 1")
    counts = _scale_shares(shares, n_max)
    if (counts > available).any():
        short = int(np.argmax(counts > available))
        raise ValueError(
            f"n_max = {n_max} is not allowed: class {short} would keep {counts[short]} samples and has "
            f"{available[short]}; it must be at most {_largest_n_max(available, shares)}"
        )
    return counts


def long_tail(
    labels: NDArray[np.int64],
    imbalance: float,
    rng: np.random.Generator,
    profile: Profile = "exponential",
    n_max: int | None = None,
) -> NDArray[np.int64]:
    """Draw the sorted indices of a random subset of `labels` with exactly the counts of `class_counts`.

    The classes are 0 to labels.max(), and each must occur.
    """
    available = np.bincount(labels)
    if len(missing := np.flatnonzero(available == 0)):
        raise ValueError(
            f"labels must contain every class from 0 to {labels.max()}, got none of {shorten(missing)}"
        )
    counts = class_counts(available, imbalance, profile, n_max)
    reached = counts.min() / counts.max()
    if len(counts) > 1 and counts.min() == 1 and reached > NOTICEABLE * imbalance:
        text = (
            f"imbalance = {imbalance:g} is not reached: every class keeps at least 1 sample, and the largest keeps"
        )
        warnings.warn(f"{text} {counts.max()}, so that it is {reached:.2g}", stacklevel=2)
    rows = [
        rng.choice(np.flatnonzero(labels == c), size=count, replace=False, shuffle=False)
        for c, count in enumerate(counts)
    ]
    return np.sort(np.concatenate(rows))


def _class_shares(classes: int, imbalance: float, profile: str) -> NDArray[np.float64]:
    """Return the size of each class relative to the head."""
    require(0 < imbalance <= 1, "imbalance", imbalance, "n_min / n_max, above 0 and at most 1")
    rank = np.arange(classes)
    if profile == "exponential":
        return np.asarray(imbalance ** (rank / max(classes - 1, 1)), dtype=np.float64)
    if profile == "step":
        return np.where(rank < (classes + 1) // 2, 1.0, imbalance)
    raise unknown("profile", profile, get_args(Profile))


def _scale_shares(shares: NDArray[np.float64], n_max: int) -> NDArray[np.int64]:
    return np.maximum(np.floor(n_max * shares * _ROUNDING_GUARD), 1).astype(np.int64)


def _largest_n_max(available: NDArray[np.int64], shares: NDArray[np.float64]) -> int:
    """Find the largest head count by bisection: the counts never fall when it grows."""
    low, high = 1, int(available[0])
    while low < high:
        middle = (low + high + 1) // 2
        if (_scale_shares(shares, middle) <= available).all():
            low = middle
        else:
            high = middle - 1
    return low
