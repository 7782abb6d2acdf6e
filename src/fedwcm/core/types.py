"""The vocabulary: what travels, what a client knows, what the server knows.

A vector of parameters is flat. Hooks see a *block* of K clients at once: a local model `w` is `(K, P)`, one
row a client, and what everybody received, such as `x`, is `(P,)` and broadcasts. Code that works on the last
axis reads as if written for one client and serves any number of them; an engine may choose K = 1.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwcm.core.rng import Purpose, generator
from fedwcm.engine.fast.affine_step import Blend

if TYPE_CHECKING:
    from fedwcm.engine.fast.ascent import AscendedModels
    from fedwcm.engine.network import Network

Vec = Tensor
"""Flat parameters: `(P,)` where all share them, `(K, P)` where each client has its own."""

State = dict[str, Tensor]
"""What persists or travels: it is checkpointed, sent, counted in bytes."""

Report = dict[str, NDArray[np.float64]]
"""Small plain numbers that clients tell the server, one entry a client."""

Point: TypeAlias = "Tensor | AscendedModels"
"""Where a gradient is taken: models `(K, P)`, or models moved up their gradient that nobody has written out."""


class GradientOracle(Protocol):
    """Gradients of the current mini-batch objective, each client's on its own batch."""

    def __call__(self, w: Point, /) -> Vec:
        """The gradient at `w`. It is new every time: whoever asked for it may change it in place."""
        ...

    def uphill(self, w: Vec, rho: float) -> Point:
        """The models `w` moved by rho along their gradients."""
        ...


Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Population:
    """What everybody may know of the federation: sizes, and the class distribution once it is gathered."""

    clients: int
    classes: int
    mean_samples: float
    prior: Floats
    rounds: int
    epochs: int
    batch_size: int

    @property
    def reference_steps(self) -> int:
        """B̂: the local steps of a client of mean size."""
        return self.epochs * int(np.ceil(self.mean_samples / self.batch_size))

    @property
    def nominal_steps(self) -> float:
        """E·n̄/b, a fraction: what the code base that the paper builds on divides by."""
        return self.epochs * self.mean_samples / self.batch_size


@dataclass(frozen=True, eq=False)
class Clients:
    """A block of clients: what each of them knows of itself."""

    ids: Ints
    samples: Ints
    counts: Ints
    steps: Ints

    def __len__(self) -> int:
        return len(self.ids)

    def first(self, k: int) -> Self:
        return replace(
            self, ids=self.ids[:k], samples=self.samples[:k], counts=self.counts[:k], steps=self.steps[:k]
        )


@dataclass(frozen=True, eq=False)
class Context:
    """All that a client sees while it trains: the received model and message, its data's size, its rate."""

    seed: int
    round: int
    x: Vec
    message: State
    population: Population
    clients: Clients
    base_lr: float
    learning_rates: Floats
    prepared: State
    blend: Blend = field(default_factory=Blend)

    def first(self, k: int) -> Self:
        """The context of the first k clients of the block."""
        if k == len(self.clients):
            return self
        return replace(
            self,
            clients=self.clients.first(k),
            learning_rates=self.learning_rates[:k],
            prepared={key: value[:k] for key, value in self.prepared.items()},
            blend=self.blend.first(k),
        )

    def generators(self, purpose: Purpose) -> list[np.random.Generator]:
        """Each client's own random numbers for this purpose, in this round."""
        return [generator(self.seed, purpose, self.round, int(client)) for client in self.clients.ids]

    @cached_property
    def lr(self) -> Tensor:
        """Local learning rates, `(K, 1)`."""
        return self._column(self.learning_rates)

    @cached_property
    def steps(self) -> Tensor:
        """Local steps of this round, `(K, 1)`."""
        return self._column(self.clients.steps)

    def _column(self, values: NDArray[np.generic]) -> Tensor:
        return torch.as_tensor(values, dtype=self.x.dtype, device=self.x.device)[:, None]


@dataclass(frozen=True, eq=False)
class Combination:
    """A linear combination over clients of one uploaded key. Several may read the same upload."""

    key: str
    weights: Floats


@dataclass(frozen=True, eq=False)
class Cohort:
    """The clients that answered this round, as the server knows them, ordered by id."""

    round: int
    ids: Ints
    samples: Ints
    steps: Ints
    base_lr: float
    learning_rates: Floats
    report: Report
    population: Population
    network: "Network"
    rng: np.random.Generator

    def __len__(self) -> int:
        return len(self.ids)


def bytes_of(state: State) -> int:
    """How many bytes the tensors of a state take on the wire."""
    return sum(value.numel() * value.element_size() for value in state.values())
