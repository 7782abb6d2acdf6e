"""The clients of a round on a Ray cluster. The server gets reports and sums; uploads stay where they were made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from math import isfinite, prod

import numpy as np
import torch
from torch import Tensor

from fedwcm.core.types import Floats, Ints, Report
from fedwcm.engine.backends.in_process import BlockCollector, InProcess
from fedwcm.engine.backends.on_ray.cluster import Cluster
from fedwcm.engine.backends.on_ray.phase import Phase
from fedwcm.engine.backends.on_ray.pool import WorkerPool
from fedwcm.engine.backends.on_ray.worker import LARGEST, NORM, BlockAnswer, WorkerSetup
from fedwcm.engine.backends.plan import stacked_block
from fedwcm.engine.client import Broadcast, Task
from fedwcm.engine.uploads import CohortUpdates, uploaded

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
        phase.train(self._blocks(ids))
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

    def _blocks(self, ids: Ints) -> list[Ints]:
        """Cut the clients into blocks, for as many workers as there were at first, whatever becomes of them."""
        if self._setup.plan.stacked:
            self._inner.block = stacked_block(self._inner.trainer.forward.network, -(-len(ids) // self._spread))
        return self._inner.blocks(ids)


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
        return uploaded(self.norms_by_key, key)

    def rows(self, key: str) -> Tensor:
        return self.phase.rows(key, self.ids).to(self.device)

    def sum(self, key: str, weights: Floats) -> Tensor:
        shape, dtype = uploaded(self.forms, key)
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
