"""Small arrays for tests of data."""

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def images(count: int, side: int, channels: int, seed: int = 0) -> Bytes:
    shape = (count, side, side, channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def labels(count: int, classes: int = 10) -> NDArray[np.int64]:
    return np.arange(count, dtype=np.int64) % classes
