"""Train the clients of a round: in this process, one by one or stacked in blocks."""

from typing import Protocol

import numpy as np
import torch

from fedwcm.core.types import Ints, State
from fedwcm.engine.batches import Shard
from fedwcm.engine.client import Broadcast, ClientTrainer, ClientUpdates, Task
from fedwcm.engine.federation import Federation
from fedwcm.engine.store import ClientStore


class Backend(Protocol):
    """Runs clients that were asked; the result has a row for each that answered, by ascending id."""

    def run(self, task: Task, ids: Ints, sent: Broadcast) -> ClientUpdates: ...

    def close(self) -> None: ...


class InProcess:
    """Clients in blocks, one block after the other. A block of one client is the sequential reference."""

    def __init__(self, training: ClientTrainer, federation: Federation, store: ClientStore, block: int) -> None:
        self.training, self.federation, self.store, self.block = training, federation, store, block

    def run(self, task: Task, ids: Ints, sent: Broadcast) -> ClientUpdates:
        gathered = BlockCollector(ids)
        self.store.reserve(ids)
        for block in self.blocks(ids):
            gathered.put(np.searchsorted(ids, block), self.run_block(task, block, sent))
        return gathered.result()

    def run_block(self, task: Task, block: Ints, sent: Broadcast) -> ClientUpdates:
        """Let one block of clients work, longest first, and stage their state."""
        shards = [self.federation.shard(int(client)) for client in block]
        result = self.training.run(task, block, shards, self._state(block, shards, sent), sent)
        self.store.stage(block, result.state)
        return result

    def blocks(self, ids: Ints) -> list[Ints]:
        """The clients, longest first, cut into blocks."""
        order = np.argsort(-self.training.steps(self.federation.samples[ids]), kind="stable")
        return [ids[order[start : start + self.block]] for start in range(0, len(ids), self.block)]

    def close(self) -> None:
        pass

    def _state(self, block: Ints, shards: list[Shard], sent: Broadcast) -> State:
        if not self.store.keeps_anything:
            return {}
        visited = self.store.has(block)
        if visited.all():
            return self.store.read(block, sent.x.device)
        fresh = self.training.initial_state(self.training.clients(block, shards), sent.x)
        state = self.store.read(block, sent.x.device)
        known = torch.from_numpy(visited)
        return {key: torch.where(_column(known, rows), state[key], rows) for key, rows in fresh.items()}


class BlockCollector:
    """Results of blocks, put back into the order in which the clients were asked for."""

    def __init__(self, ids: Ints) -> None:
        self._ids = ids
        self._upload: State = {}
        self._numbers: dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]] = {}

    def put(self, positions: Ints, result: ClientUpdates) -> None:
        """Store a block's rows at these positions."""
        first, last = int(positions[0]), int(positions[-1])
        together = last - first + 1 == len(positions) and bool((np.diff(positions) == 1).all())
        rows = slice(first, last + 1) if together else torch.from_numpy(positions)  # a third of the time
        for key, value in result.upload.items():
            if key not in self._upload:
                self._upload[key] = value.new_empty(len(self._ids), *value.shape[1:])
            self._upload[key][rows] = value
        numbers = {f"report/{key}": value for key, value in result.report.items()}
        own = {"lr": result.learning_rates, "loss": result.loss, "accuracy": result.accuracy}
        for key, values in {**numbers, **own}.items():
            self._numbers.setdefault(key, np.zeros(len(self._ids)))[positions] = values

    def result(self) -> ClientUpdates:
        numbers = dict(self._numbers)
        report = {k.removeprefix("report/"): v for k, v in numbers.items() if k.startswith("report/")}
        return ClientUpdates(
            self._ids, self._upload, report, {}, numbers["lr"], numbers["loss"], numbers["accuracy"]
        )


def _column(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return mask.to(like.device).view(-1, *[1] * (like.dim() - 1))
