"""What can go wrong while clients train, and what to do about it. Imports no torch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedwcm.core.checks import shorten
from fedwcm.utils.child_process import how_it_ended, signal_name

if TYPE_CHECKING:
    from fedwcm.core.types import Ints

OUT_OF_MEMORY = (
    "Use fewer processes (--set run.workers=1, or --backend sequential), smaller batches, or a smaller model"
)
CRASHED = (
    "It crashed in native code: `fedwcm doctor` looks for faults of this machine; or try --backend sequential"
)
CRASHES = {"SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE"}


class WorkerError(RuntimeError):
    """Clients could not be trained, in a worker process or for want of memory."""


class WorkerDiedError(WorkerError):
    """A worker process ended without an answer."""

    def __init__(self, exit_code: int | None) -> None:
        self._signal = signal_name(exit_code)
        super().__init__(how_it_ended(exit_code))

    @property
    def advice(self) -> str:
        """What to do about it if it happens again and again."""
        if self._signal == "SIGKILL":
            return f"The system kills a process when memory runs out. {OUT_OF_MEMORY}"
        return CRASHED if self._signal in CRASHES else "With --backend sequential everything runs in one process"


@contextmanager
def explained_if_out_of_memory(where: Callable[[], str]) -> Iterator[None]:
    """Say where, and what to do, if the memory of this process does not suffice."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        cure = "Use --backend sequential if it is not yet, smaller batches, or a smaller model"
        raise WorkerError(f"{where()}: ran out of memory ({error}). {cure}") from None


def is_out_of_memory(error: Exception) -> bool:
    """Return whether it is Python's error, or torch's, which has no type of its own on a CPU."""
    phrases = ("DefaultCPUAllocator", "out of memory")
    return isinstance(error, MemoryError) or any(phrase in str(error) for phrase in phrases)


class WorkerDiedWarning(UserWarning):
    """A worker process died; its clients are trained again."""


def place(round_: int, block: "Ints") -> str:
    """Return a round, counted from 0, and the clients of a block, for a message."""
    return f"round {round_ + 1}, {clients_text(block)}"


def clients_text(block: "Ints") -> str:
    """Return a block's clients, for a message."""
    return f"client{'s' if len(block) > 1 else ''} {shorten(sorted(block.tolist()))}"
