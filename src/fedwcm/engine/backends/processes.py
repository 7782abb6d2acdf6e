"""Train the clients of a round in several processes, each on one thread.

On a CPU, two processes with a thread each train two clients faster than one process with two threads trains one
after the other, and suffer less from a busy neighbour. Workers are forked, so they have the data and the model
without copying, and exchange vectors with the parent through shared memory. Every client trains exactly as it
would in one process: who trains it changes nothing.
"""

import gc
import multiprocessing
import signal
import traceback
from collections import deque
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait

import torch
import torch.multiprocessing  # registers how tensors cross a pipe: as handles of shared memory

from fedwcm.core.types import Ints, State
from fedwcm.engine.backends.in_process import BlockCollector, InProcess
from fedwcm.engine.client import Broadcast, ClientUpdates, Task


class Mailbox:
    """A state in shared memory: handed over once, written anew every time."""

    def __init__(self) -> None:
        self._shared: State = {}

    def write(self, state: State) -> State:
        """Copy a state in; returns the tensors that the other side does not have yet."""
        new: State = {}
        for key, value in state.items():
            held = self._shared.get(key)
            if held is None or held.shape != value.shape or held.dtype != value.dtype:
                held = self._shared[key] = new[key] = _shared_like(value)
            held.copy_(value)
        return new


class Processes:
    """Forked workers that pull blocks of clients until the round is done."""

    def __init__(self, inner: InProcess, workers: int) -> None:
        self._inner = inner
        self._outbox = Mailbox()
        gc.freeze()  # else the workers' collectors would write to, and so copy, every page they were forked with
        context = multiprocessing.get_context("fork")
        self._pipes: list[Connection] = []
        self._inboxes: list[State] = [{} for _ in range(workers)]
        self._workers = []
        for _ in range(workers):
            ours, theirs = context.Pipe()
            self._pipes.append(ours)
            worker = context.Process(target=_work, args=(inner, theirs, self._pipes), daemon=True)
            worker.start()
            theirs.close()
            self._workers.append(worker)
        gc.unfreeze()

    def run(self, task: Task, ids: Ints, sent: Broadcast) -> ClientUpdates:
        collector = BlockCollector(ids)
        new = self._outbox.write({"x": sent.x, "buffers": sent.buffers, **_prefixed(sent.message)})
        keys = tuple(sent.message)
        waiting = deque(self._inner.blocks(ids))
        for pipe in self._pipes:
            pipe.send(("round", new, keys, sent.round, sent.base_lr))
        busy: dict[Connection, Ints] = {}
        for pipe in self._pipes:
            self._give(pipe, task, waiting, busy)
        while busy:
            for ready in wait(list(busy)):
                pipe = next(p for p in busy if p is ready)
                busy.pop(pipe)
                collector.put(self._answer(pipe))
                self._give(pipe, task, waiting, busy)
        return collector.result()

    def _give(self, pipe: Connection, task: Task, waiting: "deque[Ints]", busy: dict[Connection, Ints]) -> None:
        if waiting:
            busy[pipe] = waiting.popleft()
            pipe.send((task, busy[pipe]))

    def _answer(self, pipe: Connection) -> ClientUpdates:
        inbox = self._inboxes[self._pipes.index(pipe)]
        try:
            error, new, keys, result = pipe.recv()
        except EOFError:
            raise RuntimeError("a worker process ended unexpectedly (out of memory?)") from None
        if error:
            raise RuntimeError(f"a worker process failed:\n{error}")
        inbox.update(new)
        received: ClientUpdates = replace(result, upload={key: inbox[key] for key in keys})
        return received

    def close(self) -> None:
        for pipe, worker in zip(self._pipes, self._workers, strict=True):
            with suppress(OSError):
                pipe.send(("stop",))
            pipe.close()
            worker.join(timeout=5)
            if worker.is_alive():
                worker.kill()


def _shared_like(value: torch.Tensor) -> torch.Tensor:
    shared: torch.Tensor = torch.empty_like(value).share_memory_()  # type: ignore[no-untyped-call]
    return shared


def _prefixed(message: State) -> State:
    return {f"message/{key}": value for key, value in message.items()}


def _work(inner: InProcess, pipe: Connection, parents_ends: list[Connection]) -> None:
    """A worker's life: hear of the round, train blocks, until the parent hangs up, or dies."""
    for end in parents_ends:  # forked along: while any copy is open, nobody would notice that the parent is gone
        end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, who then hangs up
    torch.set_num_threads(1)
    inbox: State = {}
    outbox = Mailbox()
    sent: Broadcast | None = None
    while True:
        try:
            task, *rest = pipe.recv()
        except (EOFError, OSError):
            return
        if task == "stop":
            return
        if task == "round":
            new, keys, round_, base_lr = rest
            inbox.update(new)
            message = {key: inbox[f"message/{key}"] for key in keys}
            sent = Broadcast(round_, inbox["x"], inbox["buffers"], message, base_lr)
            continue
        assert sent is not None
        try:
            _train(inner, pipe, outbox, task, rest[0], sent)
        except (BrokenPipeError, ConnectionResetError):
            return
        except Exception:
            pipe.send((traceback.format_exc(), {}, (), None))


def _train(inner: InProcess, pipe: Connection, outbox: Mailbox, task: Task, block: Ints, sent: Broadcast) -> None:
    """Let one block of clients work, and send what they made; nothing of it is kept here."""
    result = inner.run_block(task, block, sent)
    new = outbox.write(result.upload)
    pipe.send(("", new, tuple(result.upload), replace(result, upload={}, state={})))
