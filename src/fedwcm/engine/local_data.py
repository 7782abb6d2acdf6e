"""The engine's implementation of `core.local_data.LocalData`, for methods and losses."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedwcm.core.batch import Batch, Outputs, Shard
from fedwcm.core.loss import Loss
from fedwcm.core.rng import Purpose
from fedwcm.core.types import Context, State, Vec
from fedwcm.engine.batches import Augmentation, whole
from fedwcm.engine.forward import Forward
from fedwcm.engine.oracle import differentiate

CHUNK = 256
"""Samples per client in a forward pass over all of its data; affects memory only."""


class BlockData:
    """All data of a block of clients; nothing here trains or updates buffers."""

    def __init__(
        self,
        shards: Sequence[Shard],
        forward: Forward,
        loss: Loss,
        state: State,
        ctx: Context,
        augmentation: Augmentation | None = None,
    ) -> None:
        self._shards, self._forward, self._loss, self._state, self._ctx = shards, forward, loss, state, ctx
        self._augmentation = augmentation

    def batches(self) -> Iterator[Batch]:
        samples = int(self._ctx.clients.samples[0])
        alone = bool(self._forward.network.buffers) and samples > CHUNK and samples % CHUNK == 1
        return whole(self._shards, CHUNK + 1 if alone else CHUNK)  # BatchNorm cannot take one sample by itself

    def outputs(self, w: Vec, batch: Batch) -> Outputs:
        with torch.no_grad():
            return self._forward(w, batch.inputs, track=False)

    def loss(self, w: Vec) -> Tensor:
        total = w.new_zeros(len(w))
        with torch.no_grad():
            for batch in self.batches():
                loss, _ = self._loss(self.outputs(w, batch), batch, self._state, self._ctx)
                total += loss * _samples(batch)
        return total / self._sizes(w)

    def gradient(self, w: Vec) -> Vec:
        total = torch.zeros_like(w)
        for batch in self._augment():
            outputs = self._forward(w, batch.inputs, track=False)
            rate = _samples(batch).to(w.dtype)[:, None]
            _, _, gradient = differentiate(self._loss, self._forward, outputs, batch, self._state, self._ctx, rate)
            gradient.add_to(total)
        return total / self._sizes(w)[:, None]

    def _sizes(self, w: Vec) -> Tensor:
        return torch.as_tensor(self._ctx.clients.samples, dtype=w.dtype, device=w.device)

    def _augment(self) -> Iterator[Batch]:
        """All samples, each transformed once: otherwise mini-batches, which are, would not estimate their mean."""
        if self._augmentation is None:
            yield from self.batches()
            return
        drawn = [
            self._augmentation.draw(rng, 1, len(shard))[0]
            for rng, shard in zip(self._ctx.generators(Purpose.PROBE_AUGMENT), self._shards, strict=True)
        ]
        draws = torch.zeros((len(drawn), max(map(len, drawn)), drawn[0].shape[-1]), dtype=torch.int64)
        for k, draw in enumerate(drawn):
            draws[k, : len(draw)] = torch.from_numpy(draw)
        start = 0
        for batch in self.batches():
            chosen = draws[:, start : start + batch.labels.shape[1]].to(batch.inputs.device)
            start += batch.labels.shape[1]
            inputs = self._augmentation.apply(batch.inputs, chosen)
            yield Batch(inputs, batch.labels, batch.weight, batch.rows, batch.store)


def _samples(batch: Batch) -> Tensor:
    """Return each client's samples in this batch without padding, possibly none: `(K,)`."""
    return batch.sizes if batch.weight is None else batch.weight.sum(dim=-1)
