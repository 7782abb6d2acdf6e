"""A client's whole data, as a method or an objective may look at it once a round."""

from collections.abc import Iterator, Sequence

import torch

from fedwcm.core.loss import Loss, Outputs
from fedwcm.core.types import Context, State, Vec
from fedwcm.engine.batches import Batch, Shard, whole
from fedwcm.engine.forward import Forward

CHUNK = 256
"""Samples of one client in a forward pass over all of its data: bounds memory, changes nothing else."""


class LocalData:
    """All samples of a block of clients, and the models on them; nothing here trains or updates buffers."""

    def __init__(
        self, shards: Sequence[Shard], forward: Forward, objective: Loss, state: State, ctx: Context
    ) -> None:
        self._shards = shards
        self._forward = forward
        self._objective = objective
        self._state = state
        self._ctx = ctx

    def batches(self) -> Iterator[Batch]:
        """Every sample once, in order, without augmentation."""
        return whole(self._shards, CHUNK)

    def view(self, w: Vec, batch: Batch) -> Outputs:
        """The models `w (K, P)` on a batch, without gradient."""
        with torch.no_grad():
            return self._forward(w, batch.inputs, track=False)

    def gradient(self, w: Vec) -> Vec:
        """Gradient of the mean loss over all local samples, at `w (K, P)`."""
        total = torch.zeros_like(w)
        for batch in self.batches():
            view = self._forward(w, batch.inputs, track=False)
            loss, _ = self._objective.loss(view, batch, self._state, self._ctx)
            present = batch.sizes if batch.weight is None else batch.weight.sum(dim=-1)
            self._forward.backward(loss, present.to(loss.dtype)).add_to(total)
        sizes = torch.as_tensor(self._ctx.clients.samples, dtype=w.dtype, device=w.device)
        return total / sizes[:, None]
