"""The types that hooks work with: what is sent, what a client knows, what the server knows.

Parameter vectors are flat. Hooks see a *block* of K clients at once: local models `w` are `(K, P)`, one row per
client, and what all clients share, such as `x`, is `(P,)` and broadcasts. Code that works along the last axis
reads as if written for one client and handles any number of them; an engine may choose K = 1.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwcm.balance import checked_distribution, limit_shares
from fedwcm.core.rng import Purpose, generator
from fedwcm.utils.text import printable


@dataclass(frozen=True)
class ParamSlice:
    """The place of one tensor of a module in the flat vector.

    Convolution weights are stored with the input channels last. This is the order that CPU kernels use, so that
    neither the weights nor their gradients are ever rearranged.
    """

    name: str
    start: int
    shape: torch.Size

    @property
    def stop(self) -> int:
        return self.start + self.shape.numel()

    def of(self, w: Tensor) -> Tensor:
        """Return this tensor of flat vectors `(..., P)`, as a view of shape `(..., *shape)`."""
        piece = w[..., self.start : self.stop]
        if len(self.shape) != 4:
            return piece.view((*w.shape[:-1], *self.shape))  # one argument: there may be no sides at all
        out, into, height, width = self.shape
        return piece.view(*w.shape[:-1], out, height, width, into).movedim(-1, -3)

    def flat(self, tensor: Tensor) -> Tensor:
        """Return the tensor flattened in the order of the flat vector."""
        return (tensor.movedim(1, -1) if len(self.shape) == 4 else tensor).reshape(-1)


@dataclass(frozen=True)
class Layout:
    """The slices of a flat vector, and which belong to the head, the final linear layer, or to a normalisation.

    Args:
        slices: one slice per tensor, in order.
        head: name of the module that is the head (empty if it is the whole model); None if there is none.
        norms: names of the modules that normalise, such as BatchNorm.
    """

    slices: tuple[ParamSlice, ...]
    head: str | None = None
    norms: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, tensors: Sequence[tuple[str, Tensor]], head: str | None = None, norms: frozenset[str] = frozenset()
    ) -> "Layout":
        """Lay out named tensors one after the other."""
        slices: list[ParamSlice] = []
        for name, tensor in tensors:
            slices.append(ParamSlice(name, slices[-1].stop if slices else 0, tensor.shape))
        return cls(tuple(slices), head, norms)

    @property
    def size(self) -> int:
        """The length of the flat vector, P."""
        return self.slices[-1].stop if self.slices else 0

    @property
    def head_slices(self) -> list[ParamSlice]:
        """The slices of the head: its weight, and its bias if it has one."""
        return [part for part in self.slices if part.name.rpartition(".")[0] == self.head]

    @property
    def norm_slices(self) -> list[ParamSlice]:
        """The slices of the layers that normalise: their scales and shifts."""
        return [part for part in self.slices if part.name.rpartition(".")[0] in self.norms]

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the flat vector of the tensors, given in the order of the slices."""
        pieces = [part.flat(tensor.detach()) for part, tensor in zip(self.slices, tensors, strict=True)]
        return torch.cat(pieces) if pieces else torch.zeros(0)

    def unflatten(self, w: Tensor) -> dict[str, Tensor]:
        """Return the named tensors of flat vectors `(..., P)`, as views of shape `(..., *shape)`."""
        return {part.name: part.of(w) for part in self.slices}


Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

Vec = Tensor
"""Flat parameters: `(P,)` if all clients share them, `(K, P)` if each client has its own."""

State = dict[str, Tensor]
"""Tensors that are kept or sent: they are checkpointed and their bytes are counted."""

Report = dict[str, NDArray[np.float64]]
"""Plain numbers that clients report to the server, one entry per client."""


class Fault(StrEnum):
    """Kinds of reasons for which a round goes on without a client."""

    ABSENT = "absent"
    """It is not connected, or still busy with an earlier round."""
    LATE = "late"
    FAILED = "failed"
    """It reported an error of its own."""
    REFUSED = "refused"
    """Its answer cannot be used."""
    MISADDRESSED = "misaddressed"
    """It is another client than the server believed."""
    NOT_FINITE = "not finite"
    """Its upload has a NaN or an infinity."""
    LOST = "lost"
    """Its upload was lost before it was summed."""


@dataclass(frozen=True)
class LeftOut:
    """Why a round goes on without a client: decisions follow the fault, and people read the details."""

    fault: Fault
    details: str

    def __str__(self) -> str:
        return printable(self.details)


class GradientOracle(Protocol):
    """Gradients of the current mini-batch loss, each client's on its own batch.

    Only the first evaluation in a local step updates BatchNorm's statistics, the loss's client state and the
    training loss.
    """

    def __call__(self, w: Vec, /) -> Vec:
        """Return the gradient at `w`, a new tensor that the caller may modify in place."""
        ...

    def shifted(self, e: Vec) -> "GradientOracle":
        """Return an oracle whose gradient at `w` is this one's at `w + e`."""
        ...

    def ascended(self, rho: float) -> "GradientOracle":
        """Return an oracle whose gradient at `w` is this one's after a step of length rho up the gradient."""
        ...

    def of_classes(self, classes: Tensor) -> Callable[[Vec], Vec]:
        """Return the part of the gradient that samples of these classes contribute, as a function of `w`.

        `classes (C,)` is 1 for the classes meant and 0 for the others, whose part is the rest of the gradient.
        Evaluate the whole gradient first: it is the one that counts for statistics and the training loss.
        """
        ...

    def generators(self) -> list[np.random.Generator]:
        """Return each client's random number generator for this step: for noise and masks."""
        ...


class Uploads(Protocol):
    """The uploads of a round's clients. The server reads sums over them.

    Single ones are for methods that declare `reads_rows`; encryption and secure aggregation refuse these.
    """

    def sum(self, key: str, weights: Floats) -> Tensor:
        """Return Σ_k weights_k · upload_k for one key; with weights `(m, K)`, m such sums in one pass."""
        ...

    def rows(self, key: str) -> Tensor:
        """Return all uploads for one key, a row for each client: what no sum can say, such as a median."""
        ...


@dataclass(frozen=True, eq=False)
class Population:
    """What server and clients know about the federation: sizes, and the gathered class distribution.

    `target` is the class distribution that the model will meet; None is the uniform one. `deviation` is the mean
    over the clients of ‖p̂ − p_k‖₁, the distance of their own class distribution from it.
    """

    clients: int
    classes: int
    mean_samples: float
    prior: Floats
    rounds: int
    epochs: int | None
    batch_size: int
    steps: int | None = None
    """Local steps of every client in a round, instead of epochs."""
    momentum: float = 0.0
    nesterov: bool = False
    smallest_batch: int = 1
    """Samples below which the last batch of a pass is left out, unless it is the only one."""
    target: Floats | None = None
    deviation: float = 0.0

    def __post_init__(self) -> None:
        if self.target is not None:
            checked_distribution("run.target", self.target, self.classes)

    @property
    def reference_steps(self) -> int:
        """B̂: the local steps of a client of mean size."""
        return int(self.local_steps(np.array(self.mean_samples)))

    @property
    def nominal_steps(self) -> float:
        """E·n̄/b, a fraction: the divisor in the code base that the paper builds on."""
        return float(self.steps or (self.epochs or 0) * self.mean_samples / self.batch_size)

    def local_steps(self, samples: Ints | Floats) -> Ints:
        """Return B_k, each client's steps in a round, given its number of samples: E·⌈n_k/b⌉, or `steps`."""
        batches = self.batches(samples)
        return np.full_like(batches, self.steps) if self.steps else (self.epochs or 0) * batches

    def batches(self, samples: Ints | Floats) -> Ints:
        """Return the batches of one pass over this many samples: ⌈n/b⌉, without a last one that is left out."""
        batches = np.ceil(samples / self.batch_size).astype(np.int64)
        if self.smallest_batch == 1:
            return batches
        last = samples - (batches - 1) * self.batch_size
        return np.where((batches > 1) & (last < self.smallest_batch), batches - 1, batches)

    def path(self, steps: Ints) -> Floats:
        """Return the sum of the weights that all directions have in the increment of a client, per unit of lr.

        Plain SGD: the number of its steps. With momentum m, a direction counts again in every later step: along a
        constant direction, step s has the length (1 − mˢ)/(1 − m), or with Nesterov's form (1 − mˢ⁺¹)/(1 − m).
        """
        m, n = self.momentum, steps + self.nesterov
        if not m:
            return steps.astype(np.float64)
        total: Floats = (n - m * (1.0 - m**n) / (1.0 - m)) / (1.0 - m) - self.nesterov
        return total


@dataclass(frozen=True, eq=False)
class Clients:
    """A block of clients: what each of them knows about itself, and the layout of the model that they train."""

    ids: Ints
    samples: Ints
    counts: Ints
    steps: Ints
    layout: Layout = field(default_factory=lambda: Layout(()))

    def __len__(self) -> int:
        return len(self.ids)

    def first(self, k: int) -> Self:
        return replace(
            self, ids=self.ids[:k], samples=self.samples[:k], counts=self.counts[:k], steps=self.steps[:k]
        )


@dataclass(frozen=True, eq=False)
class Context:
    """What a client sees while it trains: the received model and message, its data's size, its learning rate."""

    seed: int
    round: int
    x: Vec
    message: State
    population: Population
    clients: Clients
    learning_rates: Floats
    prepared: State
    layout: Layout = field(default_factory=lambda: Layout(()))

    def first(self, k: int) -> Self:
        """Return the context of the first k clients of the block."""
        if k == len(self.clients):
            return self
        return replace(
            self,
            clients=self.clients.first(k),
            learning_rates=self.learning_rates[:k],
            prepared={key: value[:k] for key, value in self.prepared.items()},
        )

    def generators(self, purpose: Purpose, step: int = 0) -> list[np.random.Generator]:
        """Return each client's random number generator for this purpose and round, or for one of its steps."""
        return [generator(self.seed, purpose, self.round, int(client), step) for client in self.clients.ids]

    @cached_property
    def lr(self) -> Tensor:
        """Local learning rates, `(K, 1)`."""
        return self._column(self.learning_rates)

    @property
    def common_lr(self) -> float | None:
        """The learning rate of all of these clients, as `lr` has it; None if they differ."""
        rates = torch.as_tensor(self.learning_rates, dtype=self.x.dtype)
        return float(rates[0]) if bool((rates == rates[0]).all()) else None

    @cached_property
    def path(self) -> Tensor:
        """Lengths of the clients' paths, `(K, 1)`: an increment divided by it is a mean of negative directions."""
        return self._column(self.learning_rates * self.population.path(self.clients.steps))

    def constant(self, key: Hashable, make: Callable[[], NDArray[np.generic]]) -> Tensor:
        """Return numbers that stay the same while these clients train, on their device; made at the first call.

        A loss that made them at every step would make the device wait for the host at every step.
        """
        if key not in self._constants:
            self._constants[key] = self._tensor(make())
        return self._constants[key]

    @cached_property
    def _constants(self) -> dict[Hashable, Tensor]:
        return {}

    def _column(self, values: NDArray[np.generic]) -> Tensor:
        return self._tensor(values)[:, None]

    def _tensor(self, values: NDArray[np.generic]) -> Tensor:
        return torch.as_tensor(values, dtype=self.x.dtype, device=self.x.device)


@dataclass(frozen=True, eq=False)
class Cohort:
    """The clients that answered in this round, as the server knows them, ordered by id."""

    round: int
    ids: Ints
    samples: Ints
    steps: Ints
    base_lr: float
    learning_rates: Floats
    report: Report
    population: Population
    layout: Layout
    rng: np.random.Generator
    max_share: float | None = None
    """Largest share of the round's weight that a client may have."""
    told_losses: Floats | None = None
    """The clients' losses, if the method declares that it reads them."""
    staleness: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """How many rounds old the model is that each client started from; 0 unless answers may be late."""

    @property
    def losses(self) -> Floats:
        """Mean training loss of each client over its steps of the round; zeros in a first phase."""
        if self.told_losses is None:
            raise ValueError("cohort.losses are for methods that declare reads_losses = True")
        return self.told_losses

    def limit_shares(self, weights: Floats) -> Floats:
        """Return the weights of a round's clients with no larger share than the run allows."""
        return weights if self.max_share is None else limit_shares(weights, self.max_share)

    @property
    def path(self) -> Floats:
        """Lengths of the clients' paths: an increment divided by it is a mean of negative directions."""
        return self.learning_rates * self.population.path(self.steps)

    def __len__(self) -> int:
        return len(self.ids)


def bytes_of(state: State) -> int:
    """Return the number of bytes that the tensors of a state take when sent."""
    return sum(value.numel() * value.element_size() for value in state.values())
