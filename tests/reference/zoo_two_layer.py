"""A network of two layers in NumPy, and clients that train it on mini-batches their caller lists."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .zoo_losses import Labels, Vector
from .zoo_shared import Cohorts, Federation

Data = Sequence[tuple[Vector, Labels]]  # of each client, its inputs and labels
Batches = Callable[[int, int], Sequence[ArrayLike]]  # of (client, round): the sample numbers of each local step
Augment = Callable[[int, int, int, Vector], Vector]  # of (client, round, step, inputs)


class Batch(NamedTuple):
    """One local step: its number, the samples' numbers, their inputs and labels."""

    step: int
    at: Labels
    inputs: Vector
    labels: Labels


Step = Callable[[Batch, Vector], Vector]  # the gradient of a batch at y


@dataclass(frozen=True)
class TwoLayer:
    """features = activation(W1 a + b1), logits = W2 features + b2; flat as W1, b1, W2, b2, row by row."""

    inputs: int
    hidden: int
    classes: int
    activation: str = "tanh"

    @property
    def backbone_size(self) -> int:
        return self.hidden * (self.inputs + 1)

    @property
    def size(self) -> int:
        return self.backbone_size + self.classes * (self.hidden + 1)

    def head(self, x: Vector) -> Vector:
        return x[self.backbone_size :]

    def with_head(self, x: Vector, head: Vector) -> Vector:
        return np.concatenate([x[: self.backbone_size], head])

    def head_parts(self, head: Vector) -> tuple[Vector, Vector]:
        """W2 and b2."""
        cut = self.classes * self.hidden
        return head[:cut].reshape(self.classes, self.hidden), head[cut:]

    def features(self, x: Vector, inputs: Vector) -> Vector:
        w1 = x[: self.hidden * self.inputs].reshape(self.hidden, self.inputs)
        before = inputs @ w1.T + x[self.hidden * self.inputs : self.backbone_size]
        if self.activation not in ("tanh", "relu"):
            raise ValueError(f"activation is {self.activation!r}; allowed: tanh, relu")
        return np.tanh(before) if self.activation == "tanh" else np.maximum(before, 0.0)

    def classify(self, head: Vector, features: Vector) -> Vector:
        w2, b2 = self.head_parts(head)
        return np.asarray(features @ w2.T + b2)

    def logits(self, x: Vector, inputs: Vector) -> Vector:
        return self.classify(self.head(x), self.features(x, inputs))

    def backward(
        self,
        x: Vector,
        inputs: Vector,
        d_logits: Vector,
        noise: Vector | None = None,
        d_noisy: Vector | None = None,
        d_features: Vector | None = None,
    ) -> Vector:
        """Gradient by x of what has `d_logits` by the logits, and `d_noisy` by those of features + noise.

        `d_features` is the gradient by the features where these enter otherwise than through the head.
        """
        f, w2 = self.features(x, inputs), self.head_parts(self.head(x))[0]
        both = d_logits
        d_w2 = d_logits.T @ f
        if noise is not None and d_noisy is not None:
            both = d_logits + d_noisy
            d_w2 = d_w2 + d_noisy.T @ (f + noise)
        slope = 1 - f**2 if self.activation == "tanh" else (f > 0).astype(np.float64)
        d_before = (both @ w2 + (0.0 if d_features is None else d_features)) * slope
        parts = (d_before.T @ inputs, d_before.sum(axis=0), d_w2, both.sum(axis=0))
        return np.concatenate([part.ravel() for part in parts])


class Clients:
    """The data and the local training that all methods share.

    `batches(k, r)` lists the sample numbers of every local step, so it is also the sampler; `augment` changes
    the inputs of a step. Training is plain SGD, and the mean of the moves is over samples.
    """

    def __init__(
        self,
        data: Data,
        sizes: ArrayLike,
        cohorts: Cohorts,
        *,
        batches: Batches,
        local_lr: float,
        lr_decay: float = 1.0,
        server_lr: float = 1.0,
        average: str = "samples",
        augment: Augment | None = None,
    ) -> None:
        # Steps come from `batches`, so the federation's own epochs and batch size are never asked for.
        self.fed = Federation(sizes, cohorts, local_lr, epochs=1, batch_size=1, lr_decay=lr_decay)
        self.data, self.batches, self.augment = data, batches, augment
        self.server_lr, self.average = server_lr, average

    def train(self, k: int, r: int, eta: float, x: Vector, gradient: Step) -> Vector:
        y = x.copy()
        inputs, labels = self.data[k]
        for b, chosen in enumerate(self.batches(k, r)):
            at = np.asarray(chosen, dtype=np.int64)
            seen = inputs[at] if self.augment is None else self.augment(k, r, b, inputs[at])
            y = y - eta * gradient(Batch(b, at, seen, labels[at]), y)
        return y

    def merge(self, x: Vector, models: dict[int, Vector]) -> Vector:
        """x + eta_g Dbar."""
        return x + self.server_lr * self.fed.mean({k: y - x for k, y in models.items()}, self.average)
