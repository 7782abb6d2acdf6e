"""Numerical derivatives, to hold analytic ones to."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def derivative(f: Callable[[Vector], float], at: Vector, h: float = 1e-6) -> Vector:
    """Central differences of f, one entry of `at` at a time."""
    slope = np.zeros_like(at)
    for i in np.ndindex(at.shape):
        up, down = at.copy(), at.copy()
        up[i] += h
        down[i] -= h
        slope[i] = (f(up) - f(down)) / (2 * h)
    return slope
