"""Where float32 is too coarse: for inputs far from 0 and close to each other, such as Unix times."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

UNIT = 2.0**-24
"""How far float32 rounds a number, relative to it."""

TOLERATED = 1e-4
"""Rounding that inputs may suffer, relative to their standard deviation."""


def rounded_off(mean: ArrayLike, std: ArrayLike) -> NDArray[np.bool_]:
    """Return whether numbers of this mean and standard deviation, which may be 0, lose too much in float32."""
    spread = np.where(np.asarray(std) > 0, std, 1.0)
    return np.asarray(UNIT * np.abs(mean) > TOLERATED * spread)
