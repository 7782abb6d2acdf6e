"""Train the clients of a round in several processes, each on one thread.

On a CPU, two processes with a thread each train two clients faster than one process with two threads trains one
after the other, and suffer less from a busy neighbour. Every client trains exactly as it would in one process:
who trains it changes nothing. That is also why a worker that dies is no loss: another trains its clients again,
from the state that they had before the round.
"""

import gc
import multiprocessing
import signal
import time
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle, send_handle

import torch

from fedwcm.core.types import Ints, State
from fedwcm.engine.backends.errors import (
    OUT_OF_MEMORY,
    WorkerDiedError,
    WorkerDiedWarning,
    WorkerError,
    is_out_of_memory,
    place,
)
from fedwcm.engine.backends.in_process import BlockCollector, InProcess
from fedwcm.engine.backends.shared_memory import BufferLayout, Inbox, Outbox
from fedwcm.engine.client import Broadcast, ClientUpdates, Task
from fedwcm.engine.hook_checks import ComponentError
from fedwcm.engine.uploads import CohortUpdates

MESSAGE = "message/"
"""Prefix of the method's keys among the tensors of a broadcast."""

STOPPING = {signal.SIGINT, signal.SIGTERM} | ({signal.SIGHUP} if hasattr(signal, "SIGHUP") else set())


@dataclass(frozen=True)
class Announcement:
    """A round, as every worker is told of it: the tensors are in the parent's outbox."""

    round: int
    base_lr: float
    recorded: bool
    steps: Ints | None
    layout: BufferLayout


@dataclass(frozen=True)
class Answer:
    """What a worker made of a block, its upload in the worker's outbox; or what went wrong."""

    updates: ClientUpdates | None = None
    layout: BufferLayout | None = None
    grown: int = 0
    """The size of the outbox if it is a new one, which then follows."""
    error: str | ComponentError = ""


class Worker:
    """The parent's end of a worker process."""

    def __init__(self, inner: InProcess, siblings: Sequence["Worker"]) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self._inbox, self._announced = Inbox(), 0
        foreign = [self.pipe, *(sibling.pipe for sibling in siblings)]
        self._process = context.Process(target=_work, args=(inner, theirs, foreign), daemon=True)
        gc.freeze()  # else the worker's collector would write to, and so copy, every page it was forked with
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)  # until the worker has chosen what to ignore
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            gc.unfreeze()
        theirs.close()

    def announce(self, announcement: Announcement, outbox: Outbox) -> None:
        """Tell of a round that begins; OSError if the worker is gone."""
        grown = outbox.size if outbox.version > self._announced else 0
        self.pipe.send((announcement, grown))
        if grown:
            assert self._process.pid is not None
            send_handle(self.pipe, outbox.file, self._process.pid)
            self._announced = outbox.version

    def give(self, task: Task, block: Ints) -> None:
        """Hand over a block of clients; OSError if the worker is gone."""
        self.pipe.send((task, block))

    def answer(self) -> ClientUpdates:
        """Return the result of the block; the next call overwrites its upload."""
        try:
            answer: Answer = self.pipe.recv()
            if answer.grown:
                self._inbox.attach(recv_handle(self.pipe), answer.grown)
        except (EOFError, OSError):
            raise self.death() from None
        if answer.updates is None or answer.layout is None:
            raise answer.error if isinstance(answer.error, ComponentError) else WorkerError(answer.error)
        return replace(answer.updates, upload=self._inbox.read(answer.layout))

    def death(self) -> WorkerDiedError:
        """Return how the process ended."""
        self.pipe.close()
        self._process.join(timeout=5)
        if self._process.is_alive():  # it has closed its pipe, so it is of no more use
            self._process.kill()
            self._process.join()
        return WorkerDiedError(self._process.exitcode)

    def close_pipe(self) -> None:
        """Let an idle process end by itself."""
        self.pipe.close()

    def end(self, patience: float) -> None:
        """End the process: by force if it is busy for longer than this many seconds."""
        self._process.join(timeout=patience)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _work(inner: InProcess, pipe: Connection, foreign: Sequence[Connection]) -> None:
    """Work until the parent closes the pipe, or dies."""
    for end in foreign:  # forked along: while any copy is open, nobody would notice that the parent is gone
        end.close()
    for number in STOPPING:  # a key press or a closed terminal is for the parent, who then hangs up
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    torch.set_num_threads(1)
    inbox, outbox = Inbox(), Outbox()
    sent: Broadcast | None = None
    with suppress(EOFError, OSError):
        while True:
            what, detail = pipe.recv()
            if isinstance(what, Announcement):
                if detail:
                    inbox.attach(recv_handle(pipe), detail)
                sent = _read_broadcast(what, inbox)
            else:
                assert sent is not None
                _answer(pipe, _train_block(inner, outbox, what, detail, sent), outbox)


def _read_broadcast(announcement: Announcement, inbox: Inbox) -> Broadcast:
    state = inbox.read(announcement.layout)
    x, buffers = state.pop("x"), state.pop("buffers")
    message = {key.removeprefix(MESSAGE): value for key, value in state.items()}
    lr, recorded, steps = announcement.base_lr, announcement.recorded, announcement.steps
    return Broadcast(announcement.round, x, buffers, message, lr, recorded=recorded, steps=steps)


def _train_block(inner: InProcess, outbox: Outbox, task: Task, block: Ints, sent: Broadcast) -> Answer:
    """Let one block of clients work, and put what they made into the outbox; nothing of it is kept here."""
    version = outbox.version
    try:
        result = inner.run_block(task, block, sent)
        layout = outbox.write(result.upload)
    except ComponentError as error:
        return Answer(error=error)
    except Exception as error:
        where = place(sent.round, block)
        if is_out_of_memory(error):
            return Answer(error=f"{where}: a worker process ran out of memory ({error}). {OUT_OF_MEMORY}")
        return Answer(error=f"{where}: a worker process failed:\n{traceback.format_exc()}")
    grown = outbox.size if outbox.version > version else 0
    return Answer(replace(result, upload={}, state={}), layout, grown)


def _answer(pipe: Connection, answer: Answer, outbox: Outbox) -> None:
    pipe.send(answer)
    if answer.grown:
        send_handle(pipe, outbox.file, 0)


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
        announcement = Announcement(sent.round, sent.base_lr, sent.recorded, sent.steps, layout)
        collector, waiting = BlockCollector(ids), deque(self._inner.blocks(ids, sent))
        deaths: Counter[tuple[int, ...]] = Counter()
        idle, busy = list(self._workers), dict[Worker, Ints]()
        announced: set[Worker] = set()
        while waiting or busy:
            while idle and waiting:
                worker, block = idle.pop(0), waiting.popleft()
                try:
                    if worker not in announced:
                        worker.announce(announcement, self._outbox)
                        announced.add(worker)
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
        loss = f"{place(round_, block)}: a worker process {death}"
        if deaths[tuple(block)] == ATTEMPTS:
            raise WorkerError(f"{loss}, like {ATTEMPTS - 1} others before. {death.advice}") from None
        warnings.warn(f"{loss}; a new one trains them again", WorkerDiedWarning, stacklevel=2)
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
