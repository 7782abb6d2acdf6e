"""Hold out a part of the samples, class by class."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def stratified_split(labels: NDArray[Any], fraction: float, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Split sample indices into `(keep, held_out)`, both in ascending order.

    Of a class with n samples, `floor(n * fraction + 0.5)` are held out (the nearest whole number, halves
    upwards), drawn at random, but never all n: every class keeps at least one sample in `keep`.
    Labels may be of any type that NumPy can sort.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"fraction is {fraction}: it must be at least 0 and below 1")
    held_out = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = min(int(len(members) * fraction + 0.5), len(members) - 1)
        held_out[rng.permutation(members)[:count]] = True
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)
