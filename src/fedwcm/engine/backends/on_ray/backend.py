"""The clients of a round on a Ray cluster. The server gets reports and sums; uploads stay where they were made."""

import warnings
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import isfinite, prod
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayError, RayTaskError
from torch import Tensor

from fedwcm.core.types import Floats, Ints, Report, State
from fedwcm.engine.backends.errors import WorkerDiedWarning, WorkerError, clients_text, place
from fedwcm.engine.backends.in_process import BlockCollector, InProcess, StateStore
from fedwcm.engine.backends.on_ray.cluster import Cluster
from fedwcm.engine.backends.on_ray.fixed_point import in_units_of_one, unit
from fedwcm.engine.backends.on_ray.packing import pack, unpack
from fedwcm.engine.backends.on_ray.pool import ATTEMPTS, Member, WorkerPool
from fedwcm.engine.backends.on_ray.worker import LARGEST, NORM, BlockAnswer, WorkerSetup
from fedwcm.engine.backends.plan import stacked_block
from fedwcm.engine.client import Broadcast, Task
from fedwcm.engine.hook_checks import ComponentError
from fedwcm.engine.uploads import CohortUpdates, find_upload

CPU = torch.device("cpu")


class Phase:
    """Clients that work on the cluster. Their uploads are with the workers until the next phase begins.

    Args:
        number: of the phase in the run, by which workers tell an old one from a new one.
        put: takes the answers of blocks, in any order; those of a block that is trained again are the same.
    """

    def __init__(
        self,
        number: int,
        task: Task,
        sent: Broadcast,
        pool: WorkerPool,
        store: StateStore,
        put: Callable[[BlockAnswer], None],
    ) -> None:
        self._number, self._task, self._round = number, task, sent.round
        self._sent = ray.put(pack(sent))
        self._pool, self._store, self._put = pool, store, put
        self._kept: dict[Member, list[Ints]] = {}
        self._deaths: Counter[tuple[int, ...]] = Counter()

    def train(self, blocks: Sequence[Ints]) -> None:
        """Let all blocks work, each on whoever is free first."""
        waiting, running = deque(blocks), dict[Any, tuple[Member, Ints]]()
        while waiting or running:
            self._pool.require_some()
            self._hand_out(waiting, running)
            ready, _ = ray.wait([*running, *self._pool.starting], num_returns=1)
            for answer in ready:
                if answer not in running:
                    self._pool.take_in(answer)
                    continue
                member, block = running[answer]
                try:
                    self._receive(member, block, answer)
                    del running[answer]
                except RayTaskError as error:
                    if isinstance(error.cause, ComponentError):
                        raise error.cause from None
                    where = place(self._round, block)
                    raise WorkerError(f"{where}: a worker failed:\n{error}") from None
                except RayError as error:
                    waiting.extendleft(reversed(self._forget_worker(member, str(error), running)))

    def sum(self, key: str, ids: Ints, weights: Floats, bound: float, dtype: torch.dtype) -> Tensor:
        """Return sums over these clients, `(m, P)`; clients whose worker is gone are trained again first."""
        scale = unit(bound)
        total: Floats = self._from_workers(lambda: self._tree(key, ids, weights, scale))
        return in_units_of_one(total, scale, dtype)

    def rows(self, key: str, ids: Ints) -> Tensor:
        """Return the uploads of these clients themselves."""

        def collect() -> list[tuple[Ints, Any]]:
            return [(own, m.actor.rows.remote(self._number, key, own)) for m, own in self._owners(ids)]

        parts = self._from_workers(lambda: [(own, ray.get(ref)) for own, ref in collect()])
        order = np.argsort(np.concatenate([own for own, _ in parts]))
        stacked: Tensor = torch.cat([unpack(packed, CPU) for _, packed in parts])
        return stacked[torch.from_numpy(order)]

    def _hand_out(self, waiting: deque[Ints], running: dict[Any, tuple[Member, Ints]]) -> None:
        """Give every worker a block, and a second one to go on with while there are plenty."""
        load = Counter(member for member, _ in running.values())
        for level in (1, 2):
            for member in self._pool.members:
                if waiting and load[member] < level and (level == 1 or len(waiting) > len(self._pool.members)):
                    block = waiting.popleft()
                    running[self._give(member, block)] = member, block
                    load[member] += 1

    def _give(self, member: Member, block: Ints) -> Any:
        visited, state = np.zeros(len(block), dtype=np.bool_), State()
        if self._store.keeps_anything:
            visited, state = self._store.has(block), self._store.read(block, CPU)
        return member.actor.train.remote(self._number, self._task, self._sent, block, visited, pack(state))

    def _receive(self, member: Member, block: Ints, answer: Any) -> None:
        block_answer: BlockAnswer = ray.get(answer)
        self._store.stage(block_answer.updates.ids, unpack(block_answer.state, CPU))
        self._put(block_answer)
        self._kept.setdefault(member, []).append(block)

    def _forget_worker(self, member: Member, how: str, running: dict[Any, tuple[Member, Ints]]) -> list[Ints]:
        """Forget a worker; return the blocks that went with it, those it had finished among them."""
        underway = {answer: block for answer, (owner, block) in running.items() if owner is member}
        for answer in underway:
            del running[answer]
        blocks = [*underway.values(), *self._kept.pop(member, [])]
        named = clients_text(np.concatenate(blocks)) if blocks else "no clients"
        loss = f"round {self._round + 1}, {named}: a worker was lost ({how.splitlines()[0]})"
        begun = next(iter(underway.values()), None)  # workers train one block at a time
        if begun is not None:
            self._deaths[tuple(begun)] += 1
            if self._deaths[tuple(begun)] == ATTEMPTS:
                raise WorkerError(f"{loss}, like {ATTEMPTS - 1} others before") from None
        warnings.warn(f"{loss}; others train them again", WorkerDiedWarning, stacklevel=2)
        self._pool.drop(member)
        self._pool.fill()
        return blocks

    def _from_workers(self, ask: Callable[[], Any]) -> Any:
        """Return what the workers say; if one is lost meanwhile, others first train its clients again."""
        for _ in range(ATTEMPTS):
            try:
                return ask()
            except RayError as error:
                failure = error
                lost = list(self._pool.find_lost())
            for member in lost:
                self.train(self._forget_worker(member, str(failure), {}))
        raise WorkerError(f"round {self._round + 1}: uploads could not be summed: {failure}")

    def _owners(self, ids: Ints) -> list[tuple[Member, Ints]]:
        """Return the workers that keep uploads of these clients, ordered by node, with the clients of each."""
        owners = []
        for member in self._pool.members:
            own = np.intersect1d(ids, np.concatenate([ids[:0], *self._kept.get(member, [])]))
            if len(own):
                owners.append((member, own))
        return owners

    def _tree(self, key: str, ids: Ints, weights: Floats, scale: float) -> Floats:
        """Let all workers form their own sums, and each add those of two others; the server adds the last two."""
        owners = self._owners(ids)
        sums = [(self._number, key, own, weights[:, np.searchsorted(ids, own)], scale) for _, own in owners]
        inner = [at for at in range(len(owners)) if 2 * at + 2 < len(owners)]
        for at in inner:  # all at once: a call that waits for the sums of others would begin late
            owners[at][0].actor.add_own.remote(*sums[at])

        def branch(at: int) -> Any:
            actor = owners[at][0].actor
            if at not in inner:
                return actor.sum_own.remote(*sums[at])
            return actor.total.remote(*branches(2 * at + 2))

        def branches(first: int) -> list[Any]:
            return [branch(at) for at in (first, first + 1) if at < len(owners)]

        total: Floats = sum(ray.get(branches(0)))
        return total


Forms = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""The shape and the type of a client's upload, by key."""


class RayBackend:
    """Workers of a cluster that pull blocks of clients until the round is done.

    The cluster is not touched before the first round.

    Args:
        inner: this process's engine, whose store holds the clients' state.
        setup: what a worker is made of.
        connect: connects to the cluster.
        workers: workers; 0 for as many as the cluster has room for.
        gpus: share of a GPU for each worker; 0 for a core.
    """

    def __init__(
        self, inner: InProcess, setup: WorkerSetup, connect: Callable[[], Cluster], workers: int, gpus: float
    ) -> None:
        self._inner, self._setup, self._connect = inner, setup, connect
        self._workers, self._gpus = workers, gpus
        self._cluster: Cluster | None = None
        self._pool: WorkerPool | None = None
        self._spread, self._idle = 1, True
        self._numbers = count()

    def run(self, task: Task, ids: Ints, sent: Broadcast) -> CohortUpdates:
        pool, self._idle = self._start_pool(), False
        pool.fill()
        self._inner.store.reserve(ids)
        collector, forms = BlockCollector(ids), Forms()

        def put(answer: BlockAnswer) -> None:
            collector.put(answer.updates)
            forms.update(answer.forms)

        phase = Phase(next(self._numbers), task, sent, pool, self._inner.store, put)
        phase.train(self._blocks(ids, sent))
        updates, self._idle = collector.result(), True
        report, largest, norms = _split_report(updates.report)
        uploads = RemoteUploads(updates.ids, phase, forms, largest, norms, sent.x.device)
        return CohortUpdates.of(replace(updates, report=report), uploads)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close(self._idle)
        if self._cluster is not None:
            self._cluster.close()
        self._pool = self._cluster = None

    def _start_pool(self) -> WorkerPool:
        if self._pool is None:
            self._cluster = self._connect()
            self._pool = WorkerPool(self._cluster, self._workers, self._gpus, self._setup, self._inner.federation)
            self._spread = self._pool.wanted
        return self._pool

    def _blocks(self, ids: Ints, sent: Broadcast) -> list[Ints]:
        """Cut the clients into blocks, for as many workers as there were at first, whatever becomes of them."""
        if self._setup.plan.stacked:
            self._inner.block = stacked_block(self._inner.trainer.forward.network, -(-len(ids) // self._spread))
        return self._inner.blocks(ids, sent)


@dataclass(frozen=True, eq=False)
class RemoteUploads:
    """Uploads that are with the workers. What is known here of each is its largest magnitude and its norm."""

    ids: Ints
    phase: Phase
    forms: Forms
    largest: Mapping[str, Floats]
    norms_by_key: Mapping[str, Floats]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def bytes(self) -> int:
        return len(self.ids) * sum(prod(shape) * dtype.itemsize for shape, dtype in self.forms.values())

    def norms(self, key: str) -> Floats:
        return find_upload(self.norms_by_key, key)

    def rows(self, key: str) -> Tensor:
        return self.phase.rows(key, self.ids).to(self.device)

    def sum(self, key: str, weights: Floats) -> Tensor:
        shape, dtype = find_upload(self.forms, key)
        table = np.atleast_2d(np.asarray(weights, dtype=np.float64))
        bound = float((np.abs(table) @ self.largest[key]).max())
        if isfinite(bound):
            total = self.phase.sum(key, self.ids, table, bound, dtype)
        else:  # of uploads that are not finite, which were not to be refused
            total = torch.full((len(table), prod(shape)), float("nan"), dtype=dtype)
        return total.reshape(*np.shape(weights)[:-1], *shape).to(self.device)


def _split_report(report: Report) -> tuple[Report, dict[str, Floats], dict[str, Floats]]:
    """Return what clients report, and what their workers say of the uploads: largest magnitudes, and norms."""
    largest = {key.removeprefix(LARGEST): value for key, value in report.items() if key.startswith(LARGEST)}
    norms = {key.removeprefix(NORM): value for key, value in report.items() if key.startswith(NORM)}
    own = {key: value for key, value in report.items() if not key.startswith((LARGEST, NORM))}
    return own, largest, norms
