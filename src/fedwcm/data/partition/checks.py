"""Checks that all partitions share."""

from numbers import Integral, Real

import numpy as np
from numpy.typing import NDArray

from fedwcm.core.checks import require

# Beyond these a Dirichlet draw is one-hot, or even, to the last bit.
_SMALLEST, _LARGEST = 1e-9, 1e9


def check_count(field: str, value: object) -> None:
    """Raise unless the value is a whole number of at least 1."""
    is_count = not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= 1
    require(is_count, field, value, "an integer of at least 1")


def check_positive(field: str, value: object) -> None:
    """Raise unless the value is a positive number of a sensible magnitude."""
    in_range = not isinstance(value, bool) and isinstance(value, Real) and _SMALLEST <= float(value) <= _LARGEST
    require(in_range, field, value, f"a number above 0 (from {_SMALLEST:g} to {_LARGEST:g})")


def check_labels(labels: NDArray[np.int64], clients: int) -> NDArray[np.int64]:
    """The labels as int64. Raise unless they are class numbers and enough for one sample a client."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"labels must be a one-dimensional integer array, got {labels.dtype}{labels.shape}")
    if labels.size < clients:
        raise ValueError(
            f"clients = {clients} is not allowed: there are only {labels.size} samples, "
            "and each client needs at least one"
        )
    require(labels.min() >= 0, "smallest label", int(labels.min()), "a class number from 0 up")
    return labels.astype(np.int64, copy=False)
