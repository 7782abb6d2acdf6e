"""Standard output whose reader may go away, as in `fedwcm list methods | head -1`."""

import codecs
import io
import os
import select
import signal
import sys
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
