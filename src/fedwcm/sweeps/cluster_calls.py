"""Function calls on the workers of a Ray cluster, each with a core or a share of a GPU, and their messages."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import ray
import torch
from ray.exceptions import RayError, RayTaskError, TaskCancelledError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedwcm.config.schema import Config, RunOptions
from fedwcm.engine.backends.errors import WorkerError
from fedwcm.engine.backends.on_ray.cluster import room_for
from fedwcm.experiment import interrupts
from fedwcm.experiment.rounds import worker_device
from fedwcm.sweeps.execution import REFRESH

Send = Callable[[object], None]
"""Sends something to the caller while the call is going on."""

Work = Callable[..., object]
"""The called function: takes a `Send`, then the arguments. Stopping it raises KeyboardInterrupt inside."""

PATIENCE = 60.0
"""Seconds that stopped calls have to save their progress."""

ATTEMPTS = 3
"""Workers that a call may lose before it is given up."""


@dataclass(frozen=True)
class Warned:
    """A warning of a call."""

    text: str


@dataclass(frozen=True, eq=False)
class Ended:
    """A call that has ended: what it returned, or how its worker was lost; both are empty if it was stopped."""

    key: Any
    result: Any = None
    lost: str = ""


class ClusterCalls(ABC):
    """Calls on a cluster to which this process is connected, as many at a time as there are workers.

    Args:
        config: of one of the runs: the workers, what each needs, and the data, which is sent once for all calls.
    """

    def __init__(self, config: Config) -> None:
        self._options = config.run
        self.data: Any = ray.put(config.source)
        queue: Any = ray.remote(_Queue)
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._queue = queue.options(num_cpus=0, scheduling_strategy=here).remote()
        call: Any = ray.remote(_call)
        gpus = config.run.worker_gpus
        self._call = call.options(num_cpus=0 if gpus else 1, num_gpus=gpus or None, max_retries=0)
        self._keys: dict[Any, Any] = {}

    @abstractmethod
    def start_next(self) -> bool:
        """Start the next call; False if there is none."""

    @abstractmethod
    def receive(self, key: Any, message: Any) -> None:
        """Take a message of a call."""

    @abstractmethod
    def end(self, call: Ended) -> None:
        """Take the result of a call."""

    def run(self) -> None:
        """Make all calls. If one of them fails, or this process is interrupted, stop the others.

        Raises:
            WorkerError: a called function raised an exception.
        """
        try:
            while self.step():
                pass
        finally:
            self._stop_all()

    def step(self) -> bool:
        """Start as many calls as there is room for, and check on the others; False when none is left."""
        while len(self._keys) < worker_count(self._options) and self.start_next():
            pass
        if not self._keys:
            return False
        ready, _ = ray.wait(list(self._keys), num_returns=1, timeout=REFRESH)
        ended = [self._result(answer) for answer in ready]
        self._receive_all()
        for call in ended:
            self.end(call)
        return True

    def start(self, key: object, work: Work, *arguments: object) -> None:
        """Let a worker call `work(send, *arguments)`; its messages come back with the key."""
        self._keys[self._call.remote(self._queue, key, work, *arguments)] = key

    def stop(self, key: object) -> None:
        """Interrupt a call as Ctrl-C would; it ends without a result."""
        for answer in [answer for answer, own in self._keys.items() if own == key]:
            ray.cancel(answer)

    def _receive_all(self) -> None:
        for key, message in ray.get(self._queue.take.remote()):
            self.receive(key, message)

    def _stop_all(self) -> None:
        """Stop all calls, let them save their progress, and take their last messages."""
        for answer in self._keys:
            ray.cancel(answer)
        if self._keys:
            ray.wait(list(self._keys), num_returns=len(self._keys), timeout=PATIENCE)
        with suppress(RayError):  # the cluster may be gone
            self._receive_all()
        ray.kill(self._queue)

    def _result(self, answer: Any) -> Ended:
        key = self._keys.pop(answer)
        try:
            return Ended(key, ray.get(answer))
        except TaskCancelledError:
            return Ended(key)
        except RayTaskError as error:
            raise WorkerError(f"a worker failed:\n{error}") from None
        except RayError as error:
            return Ended(key, lost=str(error).partition("\n")[0])


def worker_count(options: RunOptions) -> int:
    """Return the number of workers: as configured, or as many as the cluster has room for now."""
    return options.workers or max(1, room_for(options.worker_gpus))


def for_one_worker(config: Config) -> Config:
    """Return the configuration of a run on a single worker, without its data, which is sent once for all runs."""
    device = worker_device(config.run, config.run.device)
    return replace(config, run=replace(config.run, backend="auto", workers=1, device=device), source=None)


class _Queue:
    """Holds the messages of calls until they are fetched: an actor on the node of the caller."""

    def __init__(self) -> None:
        self._messages: list[tuple[Any, Any]] = []

    def put(self, key: object, message: object) -> None:
        self._messages.append((key, message))

    def take(self) -> list[tuple[Any, Any]]:
        taken, self._messages = self._messages, []
        return taken


def _call(queue: Any, key: object, work: Work, *arguments: object) -> object:
    """Make the call, on the worker's main thread, where it can be interrupted."""

    def send(message: object) -> None:
        ray.get(queue.put.remote(key, message))

    torch.set_num_threads(1)
    with warnings.catch_warnings(), interrupts.handled():
        warnings.showwarning = lambda message, *_, **__: send(Warned(f"warning: {message}"))
        try:
            return work(send, *arguments)
        except KeyboardInterrupt:
            return None
