"""A method, a loss, a sampler and a model of one's own, and data in memory."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn

import fedwcm
from fedwcm.core.batch import Batch, Outputs
from fedwcm.core.types import Cohort, Context, Floats, Ints, State

SMALL: dict[str, Any] = {
    "clients": 6,
    "rounds": 3,
    "epochs": 1,
    "batch_size": 20,
    "participation": 0.5,
    "backend": "sequential",
}


@dataclass(frozen=True, kw_only=True)
class Tilted(fedwcm.Method):
    """FedAvg in which larger clients count more, or less."""

    power: float = 1.0

    def weights(self, s: State, cohort: Cohort) -> Floats:
        tilted: Floats = cohort.samples.astype(float) ** self.power
        return tilted / tilted.sum()


@dataclass(frozen=True, kw_only=True)
class Margin(fedwcm.Loss):
    """Multi-class hinge loss."""

    name: ClassVar[str] = ""
    width: float = 1.0

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        right = outputs.logits.gather(-1, batch.labels[..., None])
        over = (outputs.logits - right + self.width).clamp(min=0).sum(dim=-1) - self.width
        return batch.mean(over), o


class Backwards(fedwcm.Sampler):
    """Every sample once, the last first; not even a dataclass."""

    def epoch(self, labels: Ints, rng: np.random.Generator) -> Ints:
        return np.arange(len(labels))[::-1].copy()


def tiny(input_shape: tuple[int, ...], num_classes: int, width: int = 8) -> nn.Module:
    """A small model, as a factory."""
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), width), nn.Linear(width, num_classes))


def digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """600 handwritten digits as a table."""
    x, y = load_digits(return_X_y=True)
    return x[:600].astype(np.float32), y[:600].astype(np.int64)
