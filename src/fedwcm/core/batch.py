"""The data of clients: shards, the order of samples, mini-batches, what a model makes of them, the federation."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedwcm.core.checks import require_allowed
from fedwcm.core.types import Floats, Ints, Vec


@dataclass(frozen=True, eq=False)
class LazyInputs:
    """Samples as they are stored, in memory or in a mapped file, and prepared for the model when they are read."""

    stored: Tensor
    prepare: Callable[[Tensor], Tensor]

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        return self.prepare(self.stored[rows])

    def index_select(self, dim: int, rows: Tensor) -> Tensor:
        """Return these rows, as the method of a tensor does."""
        return self.prepare(self.stored.index_select(dim, rows))

    @property
    def device(self) -> torch.device:
        return self.stored.device


Inputs: TypeAlias = Tensor | LazyInputs
"""The inputs of samples, by row."""


@dataclass(frozen=True, eq=False)
class SampleStore:
    """Samples from which batches are gathered by row."""

    inputs: Inputs
    labels: Tensor
    sample_ids: Tensor
    host_labels: Ints


@dataclass(frozen=True, eq=False)
class Shard:
    """One client's data: rows of a sample store."""

    store: SampleStore
    rows: Ints

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def labels(self) -> Ints:
        return self.store.host_labels[self.rows]


@dataclass(frozen=True, eq=False)
class Batch:
    """One mini-batch per client of a block; `weight` is 0 where a shorter batch was padded.

    With several `views` of every sample, all samples in one view come after all in the one before.
    """

    inputs: Tensor
    labels: Tensor
    weight: Tensor | None
    rows: Tensor
    store: SampleStore
    views: int = 1

    @property
    def sample_ids(self) -> Tensor:
        """The index of each sample in the data set that it comes from."""
        return self.store.sample_ids[self.rows]

    def with_view(self, inputs: Tensor) -> "Batch":
        """Return the batch with one more view of all of its samples."""
        weight = None if self.weight is None else torch.cat([self.weight, self.weight], dim=1)
        labels, rows = (torch.cat([each, each], dim=1) for each in (self.labels, self.rows))
        return Batch(torch.cat([self.inputs, inputs], dim=1), labels, weight, rows, self.store, 2)

    def mean(self, values: Tensor) -> Tensor:
        """Average over the samples of each client's batch: `(K, b)` to `(K,)`."""
        return mean_over(values, self.weight)

    def share(self, values: Tensor) -> Tensor:
        """Scale `(K, b, …)` in place by each sample's weight in `mean`."""
        if self.weight is None:
            return values.div_(self.labels.shape[1])
        return values.mul_((self.weight / self.sizes[:, None])[..., None])

    @property
    def sizes(self) -> Tensor:
        """Each client's samples in this batch without padding, at least 1: `(K,)`."""
        if self.weight is None:
            return self.labels.new_full(self.labels.shape[:1], self.labels.shape[1])
        return _sizes(self.weight)


@dataclass(frozen=True, eq=False)
class Outputs:
    """Outputs of the models on one batch: the logits `(K, b, C)`, and the features they are computed from.

    `features` is the input of the final linear layer, `head(features)` applies that layer to other features,
    and `at(x)` gives the outputs of another model, such as the received one, or of one for each client, `(K, P)`,
    on the same batch, without gradient.
    """

    logits: Tensor
    features: Tensor
    head: Callable[[Tensor], Tensor]
    at: Callable[[Vec], "Outputs"]


def mean_over(values: Tensor, weight: Tensor | None) -> Tensor:
    """Average over the samples of batches `(…, b)`, counting those whose weight is 1."""
    return values.mean(dim=-1) if weight is None else (values * weight).sum(dim=-1) / _sizes(weight)


def _sizes(weight: Tensor) -> Tensor:
    return weight.sum(dim=-1).clamp(min=1)


class LocalData(Protocol):
    """All samples of a block of clients, and the models evaluated on them; nothing trains or updates buffers."""

    def batches(self) -> Iterator[Batch]:
        """Yield every sample once, in order, without augmentation."""
        ...

    def outputs(self, w: Vec, batch: Batch) -> Outputs:
        """Run the models `w (K, P)` on a batch, without gradient."""
        ...

    def loss(self, w: Vec) -> Tensor:
        """Return the mean loss over all local samples, `(K,)`, at `w (K, P)`, without augmentation or gradient."""
        ...

    def gradient(self, w: Vec) -> Vec:
        """Return the gradient of the mean loss over all local samples, at `w (K, P)`, augmented as in training."""
        ...


class ServerData(Protocol):
    """Samples of the server's own, and models run on them in evaluation mode; nothing changes the buffers."""

    @property
    def buffers(self) -> Vec:
        """Return those of the global model."""
        ...

    @property
    def labels(self) -> Tensor:
        """Return the classes of the samples, `(n,)`."""
        ...

    def outputs(self, w: Vec, buffers: Vec | None = None) -> tuple[Tensor, Tensor]:
        """Return logits and features of all samples for the model `w (P,)`, with its own buffers if it has any."""
        ...

    def gradient(self, w: Vec, rows: Tensor, loss: Callable[[Tensor], Tensor]) -> Vec:
        """Return the gradient at `w (P,)` of a function of the logits of these samples."""
        ...


class Sampler(ABC):
    """The order in which a client visits its samples in one epoch."""

    name: ClassVar[str] = ""
    balances_classes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_allowed(self)

    def batch_shares(self, counts: Ints) -> Floats:
        """Return the shares of the classes in the batches of clients with these counts, `(K, C)`."""
        drawn = counts > 0 if self.balances_classes else counts
        shares: Floats = drawn / drawn.sum(axis=1, keepdims=True)
        return shares

    @abstractmethod
    def epoch(self, labels: Ints, rng: np.random.Generator) -> Ints:
        """Return positions into the client's samples, as many as it has samples."""


class Federation(Protocol):
    """Clients numbered from 0, each with a shard of data. Shards may be generated on demand."""

    samples: Ints
    """Samples of each client, `(N,)`."""
    counts: Ints
    """Samples of each client and class, `(N, C)`."""

    def shard(self, client: int) -> Shard:
        """Return the data of one client."""
        ...


class InMemoryFederation:
    """A federation over one data set in memory, divided among clients by row."""

    def __init__(
        self, inputs: Inputs, labels: Ints, parts: list[Ints], classes: int, sample_ids: Ints | None = None
    ) -> None:
        ids = np.arange(len(labels)) if sample_ids is None else sample_ids
        device = inputs.device
        self._store = SampleStore(
            inputs, torch.from_numpy(labels).to(device), torch.from_numpy(ids).to(device), labels
        )
        self._shards = [Shard(self._store, part) for part in parts]  # each looks its labels up once in a run
        self.samples = np.array([len(part) for part in parts], dtype=np.int64)
        owner = np.repeat(np.arange(len(parts)), self.samples)
        cells = owner * classes + labels[np.concatenate(parts)]
        self.counts = np.bincount(cells, minlength=len(parts) * classes).reshape(-1, classes)

    def shard(self, client: int) -> Shard:
        return self._shards[client]
