"""A worker: trains clients, keeps what they upload, and adds it up when the server has chosen the weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray

from fedwcm.core.batch import Federation
from fedwcm.core.types import Floats, Ints, State
from fedwcm.engine.backends.in_process import InProcess
from fedwcm.engine.backends.on_ray.fixed_point import add_weighted, magnitudes
from fedwcm.engine.backends.on_ray.packing import Packed, pack, unpack
from fedwcm.engine.backends.plan import ExecutionPlan
from fedwcm.engine.client import Broadcast, ClientTrainer, ClientUpdates, Task
from fedwcm.engine.memory import keep_freed_memory
from fedwcm.engine.network import Network
from fedwcm.engine.uploads import row_norms

LARGEST, NORM = "upload/largest/", "upload/norm/"
"""Prefixes under which a report tells of the uploads that stay here."""


@dataclass(frozen=True, eq=False)
class WorkerSetup:
    """What a worker needs besides the data: how clients train, and how its network is made."""

    trainer: Mapping[str, Any]
    """The fields of the trainer without its forward pass, which belongs to a process."""
    make_network: Callable[[], Network]
    plan: ExecutionPlan
    device: str
    reject_nonfinite: bool
    read: Callable[[], Federation] | None = None
    """Reads the data where the worker is; None if they are sent."""

    @classmethod
    def of(cls, trainer: ClientTrainer, **options: Any) -> "WorkerSetup":
        """Return the setup of workers that train clients like this."""
        named = {field.name: getattr(trainer, field.name) for field in fields(trainer) if field.name != "forward"}
        return cls(trainer=named, **options)

    def in_process(self, federation: Federation, store: "ShippedState") -> InProcess:
        """Return the engine of a worker."""
        trainer = ClientTrainer(**self.trainer, forward=self.plan.forward(self.make_network()))
        return InProcess(trainer, federation, store, 1, self.reject_nonfinite)


@dataclass(frozen=True, eq=False)
class BlockAnswer:
    """What a worker says of a block: numbers, the clients' next state, and the form of the uploads it has kept."""

    updates: ClientUpdates
    state: Packed
    forms: Mapping[str, tuple[tuple[int, ...], torch.dtype]]


class ShippedState:
    """The state of one block's clients, as the server has sent it: a store for as long as the block trains."""

    def __init__(self) -> None:
        self.keeps_anything = False
        self._visited: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self._rows: State = {}
        self.staged: State = {}

    def receive(self, visited: NDArray[np.bool_], rows: State) -> None:
        self.keeps_anything, self._visited, self._rows, self.staged = bool(rows), visited, rows, {}

    def has(self, ids: Ints) -> NDArray[np.bool_]:
        return self._visited

    def read(self, ids: Ints, device: torch.device) -> State:
        return {key: rows.to(device) for key, rows in self._rows.items()}

    def reserve(self, ids: Ints) -> None:
        pass

    def stage(self, ids: Ints, state: State) -> None:
        self.staged = state


class RayWorker:
    """The actor. It has one thread, so that calls are answered one after the other."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()

    def prepare(self, setup: Packed, federation: Packed | None) -> str:
        """Get ready for a run, forgetting the last one; return the node that this worker is on."""
        chosen: WorkerSetup = unpack(setup, torch.device("cpu"))
        self._device = torch.device(chosen.device)
        self._state = ShippedState()
        data = unpack(federation, self._device) if federation is not None else None
        if data is None:
            assert chosen.read is not None, "data is sent, or read"
            data = chosen.read()
        self._inner = chosen.in_process(data, self._state)
        self._phase, self._sent = -1, Broadcast(0, torch.zeros(0), torch.zeros(0), {}, 0.0)
        self._uploads: list[tuple[Ints, State]] = []
        self._sum: Floats = np.zeros(0)
        return self.ready()

    def ready(self) -> str:
        """Return the node that this worker is on."""
        node: str = ray.get_runtime_context().get_node_id()
        return node

    def train(
        self, phase: int, task: Task, sent: Packed, block: Ints, visited: NDArray[np.bool_], state: Packed
    ) -> BlockAnswer:
        """Let a block of clients work, and keep what they upload."""
        if phase != self._phase:
            self._uploads.clear()
            self._sent, self._phase = unpack(sent, self._device), phase
        self._state.receive(visited, unpack(state, self._device))
        result = self._inner.run_block(task, block, self._sent)
        upload = {key: value.cpu() for key, value in result.upload.items()}
        self._uploads.append((result.ids, upload))
        about = {LARGEST + key: magnitudes(value) for key, value in upload.items()}
        about |= {NORM + key: row_norms(value) for key, value in upload.items()}
        updates = replace(result, upload={}, state={}, report={**result.report, **about})
        forms = {key: (tuple(value.shape[1:]), value.dtype) for key, value in upload.items()}
        return BlockAnswer(updates, pack(self._state.staged), forms)

    def sum_own(self, phase: int, key: str, ids: Ints, weights: Floats, unit: float) -> Floats:
        """Return the weighted sum over these clients' uploads, in units."""
        assert phase == self._phase, "uploads are kept until the next phase"
        total: Floats | None = None
        for members, upload in self._uploads:
            members_here, places = _places(members, ids)
            if not len(members_here):
                continue
            if total is None:
                total = np.zeros((len(weights), upload[key][0].numel()))
            rows = (
                upload[key] if len(members_here) == len(members) else upload[key][torch.from_numpy(members_here)]
            )
            add_weighted(total, rows, weights[:, places], unit)
        assert total is not None, "a worker is asked for the clients that it has trained"
        return total

    def add_own(self, *arguments: Any) -> None:
        """Form such a sum for whoever asks for it next."""
        self._sum = self.sum_own(*arguments)

    def total(self, *others: Floats) -> Floats:
        """Return the sum that was formed last plus those of other workers, which is kept no longer."""
        total, self._sum = self._sum, np.zeros(0)
        for other in others:
            total += other
        return total

    def rows(self, phase: int, key: str, ids: Ints) -> Packed:
        """Return these clients' uploads themselves, in this order."""
        assert phase == self._phase, "uploads are kept until the next phase"
        row_of = dict[int, torch.Tensor]()
        for members, upload in self._uploads:
            row_of |= dict(zip(members.tolist(), upload[key], strict=True))
        return pack(torch.stack([row_of[client] for client in ids.tolist()]))


def _places(members: Ints, ids: Ints) -> tuple[Ints, Ints]:
    """Return which members of a block are among these sorted ids, and where among them."""
    places = np.minimum(np.searchsorted(ids, members), len(ids) - 1)
    rows = np.flatnonzero(ids[places] == members)
    return rows, places[rows]
