"""Ctrl-C, SIGTERM and SIGHUP: all three ask a command to save what was done, and to end.

The first of them is raised as an exception where the command happens to be, except inside `deferred`, which puts it
off to the end of its block: what is written there is written whole. Those that follow are ignored, as everything
after the first is tidying up.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

_received: int | None = None
_raised = False
_deferring = 0


class StoppedError(KeyboardInterrupt):
    """A run was stopped by a signal; what was done is saved."""


@contextmanager
def handled() -> Iterator[None]:
    """Handle the signals within the block. Those that were ignored stay so, as `nohup` wants it."""
    global _received, _raised
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _received, _raised = None, False
    before = {number: signal.getsignal(number) for number in SIGNALS}
    heard = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    for number in heard:
        signal.signal(number, _handle)
    try:
        yield
    finally:
        for number, handler in heard.items():
            signal.signal(number, handler)


@contextmanager
def deferred() -> Iterator[None]:
    """Put a signal off to the end of the block."""
    global _deferring
    _deferring += 1
    try:
        yield
    finally:
        _deferring -= 1
    check()


def check() -> None:
    """Raise a signal that was put off, or whose exception got lost, as in a finalizer."""
    if _received is not None and not _deferring:
        _raise()


def exit_status() -> int:
    """What a shell expects of a process that ended by the signal that came."""
    return 128 + (_received or signal.SIGINT)


def _handle(number: int, frame: FrameType | None) -> None:
    global _received
    if _received is None:
        _received = number
    if not (_raised or _deferring):
        _raise()


def _raise() -> None:
    global _raised
    _raised = True
    raise KeyboardInterrupt
