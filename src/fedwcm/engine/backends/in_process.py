"""Train the clients of a round: in this process, one by one or stacked in blocks."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwcm.core.batch import Federation, Shard
from fedwcm.core.types import Fault, Floats, Ints, LeftOut, State
from fedwcm.engine.backends.errors import explained_if_out_of_memory, place
from fedwcm.engine.client import Broadcast, ClientTrainer, ClientUpdates, Task
from fedwcm.engine.uploads import CohortUpdates


class Backend(Protocol):
    """Runs clients that were asked; the result has a row for each that answered, by ascending id."""

    def run(self, task: Task, ids: Ints, sent: Broadcast) -> CohortUpdates: ...

    def close(self) -> None: ...


class StateStore(Protocol):
    """Where the state of clients is read before they train, and staged afterwards."""

    @property
    def keeps_anything(self) -> bool: ...

    def has(self, ids: Ints) -> NDArray[np.bool_]: ...

    def read(self, ids: Ints, device: torch.device) -> State: ...

    def reserve(self, ids: Ints) -> None: ...

    def stage(self, ids: Ints, state: State) -> None: ...


NOT_FINITE = "has a NaN or an infinity"
"""Phrase of a reason that marks a client as left out because its update is not finite; `Rounds` looks for it."""


class InProcess:
    """Clients in blocks, one block after the other. A block of one client is the sequential reference.

    Args:
        block: clients trained together.
        reject_nonfinite: leave a client out whose update has a NaN or an infinity; its state stays as it was.
    """

    def __init__(
        self,
        trainer: ClientTrainer,
        federation: Federation,
        store: StateStore,
        block: int,
        reject_nonfinite: bool = True,
    ) -> None:
        self.trainer, self.federation, self.store, self.block = trainer, federation, store, block
        self.reject_nonfinite = reject_nonfinite

    def run(self, task: Task, ids: Ints, sent: Broadcast) -> CohortUpdates:
        collector = BlockCollector(ids, lent=False)
        self.store.reserve(ids)
        for block in self.blocks(ids, sent):
            with explained_if_out_of_memory(partial(place, sent.round, block)):
                collector.put(self.run_block(task, block, sent))
        return CohortUpdates.of(collector.result())

    def run_block(self, task: Task, block: Ints, sent: Broadcast) -> ClientUpdates:
        """Let one block of clients work, longest first, and stage their state."""
        shards = [self.federation.shard(int(client)) for client in block]
        result = self.trainer.run(task, block, shards, self._state(block, shards, sent), sent)
        if self.reject_nonfinite:
            result = without_nonfinite(result)
        self.store.stage(result.ids, result.state)
        return result

    def blocks(self, ids: Ints, sent: Broadcast) -> list[Ints]:
        """Return the clients, longest first, cut into blocks."""
        usual = self.trainer.population.local_steps(self.federation.samples[ids])
        order = np.argsort(-(usual if sent.steps is None else sent.steps[ids]), kind="stable")
        return [ids[order[start : start + self.block]] for start in range(0, len(ids), self.block)]

    def close(self) -> None:
        pass

    def _state(self, block: Ints, shards: list[Shard], sent: Broadcast) -> State:
        if not self.store.keeps_anything:
            return {}
        visited = self.store.has(block)
        if visited.all():
            return self.store.read(block, sent.x.device)
        fresh = self.trainer.initial_state(self.trainer.clients(block, shards), sent.x, sent.buffers)
        state = self.store.read(block, sent.x.device)
        known = torch.from_numpy(visited)
        return {key: torch.where(_column(known, rows), state[key], rows) for key, rows in fresh.items()}


class BlockCollector:
    """Results of blocks, put back into the order in which the clients were asked for: by ascending id.

    Args:
        ids: the clients that were asked, ascending.
        lent: whether the next block overwrites the uploads of the one before, so that they have to be copied.
    """

    def __init__(self, ids: Ints, lent: bool = True) -> None:
        self._ids, self._lent = ids, lent
        self._answered = np.zeros(len(ids), dtype=np.bool_)
        self._upload: State = {}
        self._numbers: dict[str, Floats] = {}
        self._left_out: dict[int, LeftOut] = {}

    def put(self, result: ClientUpdates) -> None:
        """Store a block's rows."""
        self._left_out |= result.left_out
        if not len(result.ids):
            return
        positions = np.searchsorted(self._ids, result.ids)
        self._answered[positions] = True
        numbers = {f"report/{key}": value for key, value in result.report.items()}
        own = {"lr": result.learning_rates, "loss": result.loss, "accuracy": result.accuracy}
        for key, values in {**numbers, **own}.items():
            self._numbers.setdefault(key, np.zeros(len(self._ids)))[positions] = values
        first, last = int(positions[0]), int(positions[-1])
        together = last - first + 1 == len(positions) and bool((np.diff(positions) == 1).all())
        # A slice takes a third of the time of an index.
        rows = slice(first, last + 1) if together else torch.from_numpy(positions)
        if together and not self._lent and len(positions) == len(self._ids):
            self._upload = dict(result.upload)
            return
        for key, value in result.upload.items():
            if key not in self._upload:
                self._upload[key] = value.new_empty(len(self._ids), *value.shape[1:])
            self._upload[key][rows] = value

    def result(self) -> ClientUpdates:
        """Return the rows of those that answered, by ascending id."""
        if not self._answered.any():
            return no_updates(self._left_out)
        numbers = dict(self._numbers)
        report = {k.removeprefix("report/"): v for k, v in numbers.items() if k.startswith("report/")}
        everybody = ClientUpdates(
            self._ids,
            self._upload,
            report,
            {},
            numbers["lr"],
            numbers["loss"],
            numbers["accuracy"],
            self._left_out,
        )
        return everybody if self._answered.all() else everybody.select(np.flatnonzero(self._answered))


def no_updates(left_out: Mapping[int, LeftOut]) -> ClientUpdates:
    """Return the result of a phase in which no client gave a usable answer."""
    none = np.zeros(0)
    return ClientUpdates(np.zeros(0, dtype=np.int64), {}, {}, {}, none, none, none, left_out)


def without_nonfinite(result: ClientUpdates) -> ClientUpdates:
    """Leave out the clients whose upload has a NaN or an infinity."""
    sane = np.ones(len(result.ids), dtype=np.bool_)
    for value in result.upload.values():
        sane &= _finite_rows(value)
    if sane.all():
        return result
    reason = LeftOut(Fault.NOT_FINITE, f"its update {NOT_FINITE}")
    left_out = dict.fromkeys(result.ids[~sane].tolist(), reason)
    return replace(result.select(np.flatnonzero(sane)), left_out={**result.left_out, **left_out})


def _finite_rows(value: Tensor) -> NDArray[np.bool_]:
    """Tell which rows are finite. A finite sum says so at once; an infinite one may only have overflowed."""
    rows = value.reshape(len(value), -1)
    finite = torch.isfinite(rows.sum(dim=1))
    if not finite.all():
        finite |= torch.isfinite(rows).all(dim=1)
    mask: NDArray[np.bool_] = finite.cpu().numpy()
    return mask


def _column(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return mask.to(like.device).view(-1, *[1] * (like.dim() - 1))
