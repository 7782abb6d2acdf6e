"""Ctrl-C, SIGTERM and SIGHUP: all three ask a command to save what was done, and to end.

The first signal is raised as an exception wherever the command happens to be, except inside `deferred`, which
delays it to the end of its block: what is written there is written completely. Later signals are ignored, since
everything after the first one is cleanup.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class StoppedError(KeyboardInterrupt):
    """A run was stopped by a signal.

    Args:
        saved: the round from which it goes on when it is resumed; 0 if there is none.
    """

    def __init__(self, saved: int = 0) -> None:
        super().__init__(f"the progress up to round {saved} is saved" if saved else "no round was completed")


@dataclass
class _Process:
    """Signal state of this process."""

    received: int | None = None
    raised: bool = False
    deferring: int = 0


_process = _Process()


@contextmanager
def handled(until_exit: bool = False) -> Iterator[None]:
    """Handle the signals within the block. Those that were ignored stay ignored, as `nohup` requires.

    Args:
        until_exit: the process ends after the block: once stopped, it ignores further signals while it ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _process.received, _process.raised = None, False
    before = {number: signal.getsignal(number) for number in SIGNALS}
    handlers = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    for number in handlers:
        signal.signal(number, _handle)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_IGN if until_exit and _process.raised else handler)
        _process.received = None


@contextmanager
def deferred() -> Iterator[None]:
    """Delay a signal to the end of the block."""
    _process.deferring += 1
    try:
        yield
    finally:
        _process.deferring -= 1
    if _process.received is not None and not _process.deferring:
        _raise()  # raised again if the first exception was swallowed, e.g. in a finalizer


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Let a signal that is handled end the process within the block, as it does by default."""
    in_main = threading.current_thread() is threading.main_thread()
    numbers = [number for number in SIGNALS if in_main and signal.getsignal(number) is _handle]
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, _handle)


def exit_status() -> int:
    """Return the exit status that shells expect of a process that was ended by the received signal."""
    return 128 + (_process.received or signal.SIGINT)


def _handle(number: int, frame: FrameType | None) -> None:
    if _process.received is None:
        _process.received = number
    if not (_process.raised or _process.deferring):
        _raise()


def _raise() -> None:
    _process.raised = True
    raise KeyboardInterrupt
