"""Inputs as the models take them: float32, images channels first, normalised by the training data."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]

CHUNK = 1000
"""Samples looked at in double precision at a time: bounds memory."""


@dataclass(frozen=True, eq=False)
class Normalizer:
    """x ↦ (x − mean) / std: per channel of images `(n, H, W, C)`, per column of tables `(n, features)`."""

    mean: NDArray[np.float32]
    std: NDArray[np.float32]

    @classmethod
    def fit(cls, inputs: Array) -> "Normalizer":
        """The statistics of these inputs. A channel or column that never varies is only centred."""
        axes = tuple(range(inputs.ndim - 1))
        mean = inputs.mean(axis=axes, dtype=np.float64)
        squares = sum(np.square(inputs[i : i + CHUNK] - mean).sum(axis=axes) for i in range(0, len(inputs), CHUNK))
        std = np.sqrt(squares / (inputs.size / mean.size))
        return cls(mean.astype(np.float32), np.where(std > 0, std, 1.0).astype(np.float32))

    def __call__(self, inputs: Array) -> NDArray[np.float32]:
        scaled = inputs.astype(np.float32)
        scaled -= self.mean
        scaled /= self.std
        return np.ascontiguousarray(np.moveaxis(scaled, -1, 1)) if inputs.ndim == 4 else scaled
