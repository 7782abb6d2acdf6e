"""Train the clients of a round in several processes, each on one thread.

On a CPU, two processes with a thread each train two clients faster than one process with two threads trains one
after the other, and suffer less from a busy neighbour. Every client trains exactly as it would in one process:
who trains it changes nothing. That is also why a worker that dies is no loss: another trains its clients again,
from the state that they had before the round.
"""

import time
import warnings
from collections import Counter, deque
from collections.abc import Mapping
from multiprocessing.connection import wait

from fedwcm.core.types import Ints, State
from fedwcm.engine.backends.errors import WorkerDiedError, WorkerDiedWarning, WorkerError, place
from fedwcm.engine.backends.in_process import BlockCollector, InProcess
from fedwcm.engine.backends.shared_memory import Outbox
from fedwcm.engine.backends.worker import MESSAGE, Announcement, Worker
from fedwcm.engine.client import Broadcast, Task
from fedwcm.engine.uploads import CohortUpdates

ATTEMPTS = 3
"""Deaths of workers over one block of clients after which it is given up."""

PATIENCE = 1.0
"""Seconds in which idle workers end by themselves."""


class Processes:
    """Forked workers that pull blocks of clients until the round is done."""

    def __init__(self, inner: InProcess, workers: int) -> None:
        self._inner, self._outbox = inner, Outbox()
        self._workers: list[Worker] = []
        for _ in range(workers):
            self._workers.append(Worker(inner, self._workers))

    def run(self, task: Task, ids: Ints, sent: Broadcast) -> CohortUpdates:
        self._inner.store.reserve(ids)
        layout = self._outbox.write({"x": sent.x, "buffers": sent.buffers, **_prefix_keys(sent.message)})
        announcement = Announcement(sent.round, sent.base_lr, sent.recorded, layout)
        collector, waiting = BlockCollector(ids), deque(self._inner.blocks(ids))
        deaths: Counter[tuple[int, ...]] = Counter()
        idle, busy = list(self._workers), dict[Worker, Ints]()
        told: set[Worker] = set()
        while waiting or busy:
            while idle and waiting:
                worker, block = idle.pop(0), waiting.popleft()
                try:
                    if worker not in told:
                        worker.announce(announcement, self._outbox)
                        told.add(worker)
                    worker.give(task, block)
                    busy[worker] = block
                except OSError:
                    idle.append(self._replace_worker(worker, worker.death(), block, sent.round, deaths))
                    waiting.appendleft(block)
            for worker in _ready(busy):
                block = busy.pop(worker)
                try:
                    collector.put(worker.answer())
                    idle.append(worker)
                except WorkerDiedError as death:
                    idle.append(self._replace_worker(worker, death, block, sent.round, deaths))
                    waiting.appendleft(block)
        return CohortUpdates.of(collector.result())

    def _replace_worker(
        self, dead: Worker, death: WorkerDiedError, block: Ints, round_: int, deaths: Counter[tuple[int, ...]]
    ) -> Worker:
        """Replace a worker that died; raise a WorkerError if the block has cost too many already."""
        deaths[tuple(block)] += 1
        said = f"{place(round_, block)}: a worker process {death}"
        if deaths[tuple(block)] == ATTEMPTS:
            raise WorkerError(f"{said}, like {ATTEMPTS - 1} others before. {death.advice}") from None
        warnings.warn(f"{said}; a new one trains them again", WorkerDiedWarning, stacklevel=2)
        self._workers.remove(dead)
        new = Worker(self._inner, self._workers)
        self._workers.append(new)
        return new

    def close(self) -> None:
        for worker in self._workers:
            worker.close_pipe()
        deadline = time.monotonic() + PATIENCE
        for worker in self._workers:
            worker.end(max(0.0, deadline - time.monotonic()))
        self._workers.clear()
        self._outbox.close()


def _ready(busy: Mapping[Worker, Ints]) -> list[Worker]:
    """Wait for the first worker that has answered or died; return all that have."""
    by_pipe = {id(worker.pipe): worker for worker in busy}
    return [by_pipe[id(pipe)] for pipe in wait([worker.pipe for worker in busy])]


def _prefix_keys(message: State) -> State:
    return {MESSAGE + key: value for key, value in message.items()}
