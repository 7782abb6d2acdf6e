"""A worker process: forked, so that it has the data and the model without copying, and computing on one thread."""

import gc
import multiprocessing
import signal
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle

import torch

from fedwcm.core.types import Ints
from fedwcm.engine.backends.errors import OUT_OF_MEMORY, WorkerDiedError, WorkerError, is_out_of_memory, place
from fedwcm.engine.backends.in_process import InProcess
from fedwcm.engine.backends.shared_memory import BufferLayout, Inbox, Outbox
from fedwcm.engine.client import Broadcast, ClientUpdates, Task

MESSAGE = "message/"
"""Prefix of the method's keys among the tensors of a broadcast."""

STOPPING = {signal.SIGINT, signal.SIGTERM} | ({signal.SIGHUP} if hasattr(signal, "SIGHUP") else set())


@dataclass(frozen=True)
class Announcement:
    """A round, as every worker is told of it: the tensors are in the parent's outbox."""

    round: int
    base_lr: float
    recorded: bool
    layout: BufferLayout


@dataclass(frozen=True)
class Answer:
    """What a worker made of a block, its upload in the worker's outbox; or what went wrong."""

    updates: ClientUpdates | None = None
    layout: BufferLayout | None = None
    grown: int = 0
    """The size of the outbox if it is a new one, which then follows."""
    error: str = ""


class Worker:
    """The parent's end of a worker process."""

    def __init__(self, inner: InProcess, siblings: Sequence["Worker"]) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self._inbox, self._told = Inbox(), 0
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
        grown = outbox.size if outbox.version > self._told else 0
        self.pipe.send((announcement, grown))
        if grown:
            assert self._process.pid is not None
            send_handle(self.pipe, outbox.file, self._process.pid)
            self._told = outbox.version

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
            raise WorkerError(answer.error)
        return replace(answer.updates, upload=self._inbox.read(answer.layout))

    def death(self) -> WorkerDiedError:
        """How the process ended."""
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
    """Worker main loop; exits when the parent closes the pipe, or dies."""
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
    return Broadcast(announcement.round, x, buffers, message, announcement.base_lr, recorded=announcement.recorded)


def _train_block(inner: InProcess, outbox: Outbox, task: Task, block: Ints, sent: Broadcast) -> Answer:
    """Let one block of clients work, and put what they made into the outbox; nothing of it is kept here."""
    version = outbox.version
    try:
        result = inner.run_block(task, block, sent)
        layout = outbox.write(result.upload)
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
