"""Uniform sampling without replacement: every sample once per epoch, reshuffled each epoch."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedwcm.core.batch import Sampler
from fedwcm.core.types import Ints


@dataclass(frozen=True, kw_only=True)
class Uniform(Sampler):
    """A permutation of the client's samples."""

    name: ClassVar[str] = "uniform"

    def epoch(self, labels: Ints, rng: np.random.Generator) -> Ints:
        return rng.permutation(len(labels))
