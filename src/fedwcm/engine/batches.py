"""The samples that a client visits at each local step, and the mini-batch tensors built from them.

The last batch of a pass over a client's data may be too small: BatchNorm cannot train on one sample.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedwcm.core.batch import Batch, Sampler, SampleStore, Shard
from fedwcm.core.checks import shorten
from fedwcm.core.rng import ClientGenerators
from fedwcm.core.torch_rng import own_torch_generator
from fedwcm.core.types import Clients, Ints, Population
from fedwcm.engine.hook_checks import check_epochs
from fedwcm.engine.network import Network


class Augmentation(Protocol):
    """Random transformations of a batch, drawn in advance by address and applied to the tensor."""

    def draw(self, rng: np.random.Generator, steps: int, batch_size: int) -> Ints:
        """Return all random draws of one client's round: `(steps, batch_size, d)`."""
        ...

    def apply(self, inputs: Tensor, draws: Tensor) -> Tensor:
        """Return the transformed inputs `(K, b, …)`, given draws `(K, b, d)`."""
        ...


def visits(
    sampler: Sampler, shards: Sequence[Shard], clients: Clients, population: Population, rngs: ClientGenerators
) -> tuple[Ints, Ints]:
    """Return the positions that the clients of a block visit, client by client, and their batch sizes.

    The sizes are a table (clients × steps), 0 after a client's last step.
    """
    size, samples, steps = population.batch_size, clients.samples, clients.steps
    per_pass = population.batches(samples)
    passes = -(-steps // per_pass)
    orders = []
    for shard, client, count in zip(shards, clients.ids.tolist(), passes.tolist(), strict=True):
        labels, rng = shard.labels, rngs.at(client)
        orders += [sampler.epoch(labels, rng) for _ in range(count)]
    lengths = np.repeat(samples, passes)
    positions = check_epochs(sampler, orders, lengths)
    # A pass ends where the next one begins; the last, with the client's last step.
    used = np.repeat(np.minimum(samples, per_pass * size), passes)
    used[np.cumsum(passes) - 1] = np.minimum(samples, (steps - (passes - 1) * per_pass) * size)
    if (used < lengths).any():
        place = np.arange(len(positions)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        positions = positions[place < np.repeat(used, lengths)]
    step = np.arange(steps.max())
    sizes = np.minimum(size, samples[:, None] - step % per_pass[:, None] * size)
    return positions, np.where(step < steps[:, None], sizes, 0)


class Schedule:
    """All mini-batches of a block of clients, longest client first, so that active clients are the first rows."""

    def __init__(
        self,
        shards: Sequence[Shard],
        positions: Ints,
        sizes: Ints,
        draws: Sequence[Ints] = (),
        augmentation: Augmentation | None = None,
    ) -> None:
        """Lay out the batches, given the positions that are visited and the batch sizes, as `visits` returns."""
        if (np.diff(np.count_nonzero(sizes, axis=1)) > 0).any():
            raise ValueError("a block's clients must be ordered by their number of steps, longest first")
        self._store, rows = _join_stores(shards)
        width = int(sizes.max())
        starts = np.cumsum([0, *map(len, rows[:-1])])
        visited = np.concatenate(rows)[positions + np.repeat(starts, sizes.sum(axis=1))]
        padded = np.zeros((*sizes.shape, width), dtype=np.int64)
        if len(visited) == padded.size:
            padded = visited.reshape(padded.shape)
        else:
            padded[np.arange(width) < sizes[..., None]] = visited
        padded = np.ascontiguousarray(padded.transpose(1, 0, 2))  # (steps, clients, width)
        # All on the device before the first step: a copy at a step would make the device wait for the host.
        device = self._store.inputs.device
        self._rows = torch.from_numpy(padded).to(device).unbind()
        self._lengths = torch.from_numpy(sizes.T.copy()).to(device)
        active, widths = np.count_nonzero(sizes, axis=0), sizes.max(axis=0)
        shorter = sizes.sum(axis=0) < active * widths
        self._steps = list(zip(active.tolist(), widths.tolist(), shorter.tolist(), strict=True))
        self._augmentation = augmentation
        if augmentation is not None:
            stacked = np.zeros((*padded.shape, draws[0].shape[-1]), dtype=np.int64)
            for k, draw in enumerate(draws):
                stacked[: len(draw), k] = draw[:, :width]
            self._draws = torch.from_numpy(stacked).to(device)

    def __iter__(self) -> Iterator[tuple[int, Batch]]:
        """Yield, for each step, the number of clients still active and their batches."""
        for step, (active, width, padded) in enumerate(self._steps):
            yield active, self._batch(active, width, padded, step)

    def _batch(self, active: int, width: int, padded: bool, step: int) -> Batch:
        rows = self._rows[step]
        if rows.shape != (active, width):
            rows = rows[:active, :width]
        batch = gather(self._store, rows, self._lengths[step, :active] if padded else None)
        if self._augmentation is None:
            return batch
        inputs = self._augmentation.apply(batch.inputs, self._draws[step, :active, :width])
        return Batch(inputs, batch.labels, batch.weight, rows, self._store)


def whole(shards: Sequence[Shard], chunk: int) -> Iterator[Batch]:
    """Yield every sample of every client once, in order, in chunks; a client without samples left is padded."""
    store, rows = _join_stores(shards)
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


def _join_stores(shards: Sequence[Shard]) -> tuple[SampleStore, list[Ints]]:
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


DropLast = bool | Literal["auto"]

NAMED = 10
"""Clients that an error names."""


def smallest_batch(drop_last: DropLast, batch_size: int, network: Network, sample: Tensor) -> int:
    """Return the samples below which the last batch of a pass is dropped; 1 if it never is.

    Args:
        drop_last: the option `local.drop_last`.
        batch_size: the option `local.batch_size`.
        network: the model, which is tried on one sample.
        sample: a few inputs `(b, …)`; their values do not matter.
    """
    if drop_last == "auto":
        return 2 if fails_on_one_sample(network, sample) else 1
    return batch_size if drop_last else 1


def fails_on_one_sample(network: Network, sample: Tensor) -> bool:
    """Return whether the model has a BatchNorm layer that gets one value per channel from a single sample."""
    if not any(isinstance(module, _BatchNorm) for module in network.module.modules()):
        return False
    buffers = {name: buffer.clone() for name, buffer in network.module.named_buffers()}
    network.set_training_mode()
    with torch.no_grad(), own_torch_generator():
        try:
            network(sample[:1].clone(), buffers)
        except ValueError:  # BatchNorm's; whatever else is wrong shows when clients train
            return True
    return False


def require_trainable(samples: Ints, population: Population, network: Network, sample: Tensor) -> None:
    """Raise a ValueError that names the clients with a batch of one sample, if the model cannot train on it."""
    size, kept = population.batch_size, population.batches(samples)
    alone = (samples - (kept - 1) * size == 1) | (size == 1)
    if not alone.any() or not fails_on_one_sample(network, sample):
        return
    clients = alone.nonzero()[0].tolist()
    text = f"client{'s' if len(clients) > 1 else ''} {shorten(clients, NAMED)}"
    raise ValueError(
        f"BatchNorm cannot train on a batch of one sample, which {text} would have (local.batch_size = {size}): "
        f"{_remedy(samples, size, clients)}, or use a model without BatchNorm (model.norm=group for a ResNet)"
    )


def _remedy(samples: Ints, batch_size: int, clients: list[int]) -> str:
    if batch_size == 1:
        return "choose a larger batch size"
    if (samples[clients] == 1).any():
        return "give every client at least two samples"
    return "set local.drop_last=auto, which leaves such a batch out"
