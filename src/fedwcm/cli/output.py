"""What a command prints: streams whose reader may go away, the log, and where an error comes from."""

import codecs
import io
import logging
import os
import select
import signal
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

READER_GONE = 128 + getattr(signal, "SIGPIPE", 13)


def prepare_streams() -> None:
    """Make standard output and error usable, whatever the shell and the terminal have made of them."""
    _open_closed_streams()
    _spell_out_what_cannot_be_encoded()


def abandon_output() -> int:
    """Write no more to those who do not read any more, and return the status of SIGPIPE."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in filter(_is_reader_gone, (sys.stdout, sys.stderr)):
        os.dup2(nowhere, stream.fileno())  # Python flushes them once more when it ends
    return READER_GONE


def _open_closed_streams() -> None:
    """Give Python the streams that the shell has closed (`>&-`), to nowhere: it has None in their place."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _spell_out_what_cannot_be_encoded() -> None:
    """Let a terminal that is not UTF-8 show `+/-` for `±`, and `?` for what has no other form."""
    codecs.register_error("fedwcm-plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower().replace("-", "") != "utf8":
            stream.reconfigure(errors="fedwcm-plain")


def _plain(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(PLAIN.get(char, "?") for char in error.object[error.start : error.end]), error.end


PLAIN = {
    "±": "+/-",
    "–": "-",
    "−": "-",
    "×": "x",
    "…": "...",
    "“": '"',
    "”": '"',
    "’": "'",
    "→": "->",
    "α": "alpha",
}
PLAIN |= dict(zip("▁▂▃▄▅▆▇", "_.-:=+*", strict=True)) | dict.fromkeys("█▉▊▋▌", "#") | dict.fromkeys("▍▎▏", " ")


def is_reader_gone() -> bool:
    """Return whether nobody reads standard output, or standard error, any more."""
    return _is_reader_gone(sys.stdout) or _is_reader_gone(sys.stderr)


def _is_reader_gone(stream: TextIO) -> bool:
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)
    except (AttributeError, OSError, ValueError):  # a system without poll, or a stream without a file
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))


PACKAGE = Path(__file__).resolve().parents[1]
LIBRARIES = ("site-packages", "dist-packages")


def is_from_users_code(error: BaseException) -> bool:
    """Return whether the error was raised in a method, loss or other code of the user's own."""
    return any(_is_users(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__))


def _is_users(file: str) -> bool:
    """Return whether this is a file, and none of this package, of Python's library or of an installed package."""
    path = Path(file)
    if not path.is_file():
        return False
    inside = (PACKAGE, Path(sysconfig.get_path("stdlib")).resolve())
    is_ours = any(path.resolve().is_relative_to(folder) for folder in inside)
    return not is_ours and not any(name in path.parts for name in LIBRARIES)


@contextmanager
def log_on_stderr(quiet: bool) -> Iterator[None]:
    """Print what is logged to standard error, each sentence once; warnings only if `quiet`."""
    log, handler = logging.getLogger("fedwcm"), logging.StreamHandler()
    handler.addFilter(_Once())
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.WARNING if quiet else logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


class _Once(logging.Filter):
    """Lets a sentence pass once: the runs of a comparison mostly log the same."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        is_new = text not in self._said
        self._said.add(text)
        return is_new
