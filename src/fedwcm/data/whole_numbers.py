"""Labels and clients that are whole numbers, in whatever type a source holds them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST_EXACT = 2.0**53


def as_whole_numbers(values: NDArray[Any]) -> NDArray[Any]:
    """Return integers, and floats that are all whole numbers, as signed integers, and anything else as it is.

    pandas turns integers into floats where a value was missing once, and NumPy unsigned beside signed ones.
    """
    if values.dtype.kind == "u" and (values <= np.iinfo(np.int64).max).all():
        return values.astype(np.int64)
    if values.dtype.kind != "f" or not (np.abs(values) < LARGEST_EXACT).all() or (values % 1 != 0).any():
        return values
    return values.astype(np.int64)
