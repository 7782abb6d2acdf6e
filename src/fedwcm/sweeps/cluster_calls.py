"""Function calls on the workers of a Ray cluster, each with a core or a share of a GPU, and their messages."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
import torch
from ray.exceptions import RayError, RayTaskError, TaskCancelledError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedwcm.engine.backends.errors import WorkerError
from fedwcm.experiment import interrupts

Send = Callable[[object], None]
"""Sends something to the caller while the call is going on."""

Work = Callable[..., object]
"""The called function: takes a `Send`, then the arguments. Stopping it raises KeyboardInterrupt inside."""

PATIENCE = 60.0
"""Seconds that stopped calls have to save their progress."""


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


class ClusterCalls:
    """The running calls. This process must be connected to the cluster.

    Args:
        gpus: share of a GPU for each call; 0 for a core.
    """

    def __init__(self, gpus: float) -> None:
        queue: Any = ray.remote(_Queue)
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._queue = queue.options(num_cpus=0, scheduling_strategy=here).remote()
        call: Any = ray.remote(_call)
        self._call = call.options(num_cpus=0 if gpus else 1, num_gpus=gpus or None, max_retries=0)
        self._going: dict[Any, Any] = {}

    def __len__(self) -> int:
        return len(self._going)

    def start(self, key: object, work: Work, *arguments: object) -> None:
        """Let a worker call `work(send, *arguments)`; its messages come back with the key."""
        self._going[self._call.remote(self._queue, key, work, *arguments)] = key

    def wait(self, seconds: float) -> list[Ended]:
        """Wait for calls to end, for at most this many seconds; return those that did.

        Raises:
            WorkerError: the function raised an exception.
        """
        ready, _ = ray.wait(list(self._going), num_returns=1, timeout=seconds)
        return [self._end(answer) for answer in ready]

    def messages(self) -> list[tuple[Any, Any]]:
        """Return the messages since the last time, each with the key of its call."""
        messages: list[tuple[Any, Any]] = ray.get(self._queue.take.remote())
        return messages

    def stop(self, key: object) -> None:
        """Interrupt a call as Ctrl-C would; `wait` returns it when it has ended."""
        for answer in [answer for answer, own in self._going.items() if own == key]:
            ray.cancel(answer)

    def close(self) -> list[tuple[Any, Any]]:
        """Stop all calls, let them save their progress, and return their last messages."""
        for answer in self._going:
            ray.cancel(answer)
        if self._going:
            ray.wait(list(self._going), num_returns=len(self._going), timeout=PATIENCE)
        try:
            return self.messages()
        except RayError:
            return []  # the cluster is gone
        finally:
            self._going.clear()
            ray.kill(self._queue)

    def _end(self, answer: Any) -> Ended:
        key = self._going.pop(answer)
        try:
            return Ended(key, ray.get(answer))
        except TaskCancelledError:
            return Ended(key)
        except RayTaskError as error:
            raise WorkerError(f"a worker failed:\n{error}") from None
        except RayError as error:
            return Ended(key, lost=str(error).partition("\n")[0])


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
