"""A call in a process of its own, which may crash or hang. Imports no torch."""

import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from multiprocessing.context import DefaultContext, ForkContext, SpawnContext

T = TypeVar("T")

EXIT_SECONDS = 10.0
"""Time that a process which has answered may take to end by itself."""


class ChildDiedError(RuntimeError):
    """The process ended without an answer."""

    def __init__(self, exit_code: int | None) -> None:
        super().__init__(how_it_ended(exit_code))
        self.exit_code = exit_code


def call_in_child(
    context: "DefaultContext | ForkContext | SpawnContext",
    function: Callable[..., T],
    *arguments: object,
    timeout: float | None = None,
) -> T:
    """Return what `function(*arguments)` returns in a new process.

    Args:
        context: how the process is started.
        function: what is called there; it should return what is wrong rather than raise it.
        arguments: of the call.
        timeout: seconds after which the process is killed; None to wait as long as it takes.

    Raises:
        TimeoutError: there was no answer in time.
        ChildDiedError: the process ended without an answer.
    """
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, function, arguments))
    process.start()
    sender.close()  # or the end of the process would not show as the end of the pipe
    try:
        if not receiver.poll(timeout):
            raise TimeoutError(f"no answer after {timeout:g} seconds")
        answer: T = receiver.recv()
        process.join(EXIT_SECONDS)
        return answer
    except EOFError:
        process.join()
        raise ChildDiedError(process.exitcode) from None
    finally:
        process.kill()
        process.join()
        receiver.close()


def _answer(sender: Connection, function: Callable[..., object], arguments: tuple[object, ...]) -> None:
    sender.send(function(*arguments))


def how_it_ended(exit_code: int | None) -> str:
    """Return the end of a process as a predicate: `was killed by SIGKILL`, `ended with exit status 1`."""
    name = signal_name(exit_code)
    return f"was killed by {name}" if name else f"ended with exit status {exit_code}"


def signal_name(exit_code: int | None) -> str | None:
    """Return the signal that ended a process with this exit code; None if none did."""
    if exit_code is None or exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:  # a real-time signal has no name
        return f"signal {-exit_code}"
