"""The samples that a client visits at each local step, and the mini-batch tensors built from them."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedwcm.core.batch import Batch, SampleStore, Shard
from fedwcm.core.sampler import Sampler
from fedwcm.core.types import Ints, Population
from fedwcm.engine.hook_checks import check_epoch


class Augmentation(Protocol):
    """Random transformations of a batch, drawn in advance by address and applied to the tensor."""

    def draw(self, rng: np.random.Generator, steps: int, batch_size: int) -> Ints:
        """Return all random draws of one client's round: `(steps, batch_size, d)`."""
        ...

    def apply(self, inputs: Tensor, draws: Tensor) -> Tensor:
        """Return the transformed inputs `(K, b, …)`, given draws `(K, b, d)`."""
        ...


def visits(
    sampler: Sampler, labels: Ints, steps: int, population: Population, rng: np.random.Generator
) -> list[Ints]:
    """Return the positions that a client visits in each pass over its data, up to its last step."""
    batch_size, per_pass = population.batch_size, int(population.batches(np.array(len(labels))))
    passes = -(-steps // per_pass)
    whole_passes = (check_epoch(sampler, sampler.epoch(labels, rng), len(labels)) for _ in range(passes))
    orders = [order[: per_pass * batch_size] for order in whole_passes]
    orders[-1] = orders[-1][: (steps - (passes - 1) * per_pass) * batch_size]
    return orders


class Schedule:
    """All mini-batches of a block of clients, longest client first, so that active clients are the first rows."""

    def __init__(
        self,
        shards: Sequence[Shard],
        orders: Sequence[Sequence[Ints]],
        batch_size: int,
        draws: Sequence[Ints] = (),
        augmentation: Augmentation | None = None,
    ) -> None:
        """Lay out the batches; `orders[k]` holds, for each pass of client k, the positions that it visits."""
        self._store, rows = _joined(shards)
        self._sizes = _batch_sizes([[len(order) for order in passes] for passes in orders], batch_size)
        width = int(self._sizes.max())
        padded = np.zeros((*self._sizes.T.shape, width), dtype=np.int64)  # (steps, clients, width)
        for k, passes in enumerate(orders):
            step = 0
            for order in passes:
                steps = -(-len(order) // batch_size)
                filled = np.zeros(steps * width, dtype=np.int64)
                filled[: len(order)] = rows[k][order]
                padded[step : step + steps, k] = filled.reshape(steps, width)
                step += steps
        # All on the device before the first step: a copy at a step would make the device wait for the host.
        self._rows = torch.from_numpy(padded).to(self._store.inputs.device)
        self._lengths = torch.from_numpy(self._sizes.T.copy()).to(self._rows.device)
        self._steps = [(int(np.count_nonzero(sizes)), int(sizes.max())) for sizes in self._sizes.T]
        self._augmentation = augmentation
        if augmentation is not None:
            stacked = np.zeros((*padded.shape, draws[0].shape[-1]), dtype=np.int64)
            for k, draw in enumerate(draws):
                stacked[: len(draw), k] = draw[:, :width]
            self._draws = torch.from_numpy(stacked).to(self._rows.device)

    def __iter__(self) -> Iterator[tuple[int, Batch]]:
        """Yield, for each step, the number of clients still active and their batches."""
        for step, (active, width) in enumerate(self._steps):
            yield active, self._batch(active, width, step)

    def _batch(self, active: int, width: int, step: int) -> Batch:
        rows = self._rows[step, :active, :width]
        padded = bool(self._sizes[:active, step].min() < width)
        batch = gather(self._store, rows, self._lengths[step, :active] if padded else None)
        if self._augmentation is None:
            return batch
        inputs = self._augmentation.apply(batch.inputs, self._draws[step, :active, :width])
        return Batch(inputs, batch.labels, batch.weight, rows, self._store)


def whole(shards: Sequence[Shard], chunk: int) -> Iterator[Batch]:
    """Yield every sample of every client once, in order, in chunks; a client without samples left is padded."""
    store, rows = _joined(shards)
    longest = max(len(r) for r in rows)
    for start in range(0, longest, chunk):
        pieces = [r[start : start + chunk] for r in rows]
        sizes = np.array([len(p) for p in pieces])
        padded = np.zeros((len(pieces), sizes.max()), dtype=np.int64)
        for k, piece in enumerate(pieces):
            padded[k, : len(piece)] = piece
        lengths = torch.from_numpy(sizes).to(store.inputs.device) if sizes.min() < sizes.max() else None
        yield gather(store, torch.from_numpy(padded).to(store.inputs.device), lengths)


def gather(store: SampleStore, rows: Tensor, lengths: Tensor | None) -> Batch:
    """Return the batch at these rows `(K, b)`; only the first `lengths[k]` of client k count, or else all."""
    flat = rows.reshape(-1)  # index_select is several times faster than indexing with a matrix
    inputs = store.inputs.index_select(0, flat)
    inputs = inputs.view(*rows.shape, *inputs.shape[1:])
    weight = None
    if lengths is not None:
        weight = (torch.arange(rows.shape[1], device=rows.device) < lengths[:, None]).to(inputs.dtype)
    return Batch(inputs, store.labels.index_select(0, flat).view(rows.shape), weight, rows, store)


def _joined(shards: Sequence[Shard]) -> tuple[SampleStore, list[Ints]]:
    """Return one store for the whole block (shared, or joined from the clients' own) and each client's rows."""
    first = shards[0].store
    if all(shard.store is first for shard in shards):
        return first, [shard.rows for shard in shards]
    own = [shard.store for shard in shards]
    offsets = np.cumsum([0] + [len(r.host_labels) for r in own[:-1]])
    joined = SampleStore(
        torch.cat([r.inputs[:] for r in own]),
        torch.cat([r.labels for r in own]),
        torch.cat([r.sample_ids for r in own]),
        np.concatenate([r.host_labels for r in own]),
    )
    return joined, [shard.rows + offset for shard, offset in zip(shards, offsets, strict=True)]


def _batch_sizes(lengths: Sequence[Sequence[int]], batch_size: int) -> Ints:
    """Return the batch sizes (clients × steps); 0 after a client's last step."""
    per_client = [
        [min(batch_size, n - start) for n in passes for start in range(0, n, batch_size)] for passes in lengths
    ]
    sizes = np.zeros((len(per_client), max(map(len, per_client))), dtype=np.int64)
    for k, row in enumerate(per_client):
        sizes[k, : len(row)] = row
    if (np.diff([len(row) for row in per_client]) > 0).any():
        raise ValueError("a block's clients must be ordered by their number of steps, longest first")
    return sizes
