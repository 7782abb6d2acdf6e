"""What makes a bad file an error and nothing worse: bounds on unpacking, containment, one kind of exception."""

import errno
import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

FLOOR = 512 * 2**20
"""Bytes that any file may unpack to: harmless on a machine that can train."""

RATIO = 100
"""Above the floor a file may unpack to this many times its own size."""

CEILING = 64 * 2**30
"""Bytes that no file may unpack to."""

MAX_TEXT = 300
"""Characters of a parser's complaint that are shown."""

GZIP_MAGIC = b"\x1f\x8b"


class Readable(Protocol):
    """A binary file, as far as it is read here."""

    def read(self, size: int = -1, /) -> bytes: ...


def allowed_bytes(stored: int) -> int:
    """Return how many bytes a file of this size may unpack to."""
    return min(max(FLOOR, RATIO * stored), CEILING)


def require_bounded(where: str, claimed: int, stored: int) -> None:
    """Refuse what claims to unpack to more than a file of `stored` bytes may."""
    if claimed > allowed_bytes(stored):
        raise ValueError(
            f"{where} holds {stored} bytes and would unpack to {claimed} or more, which is refused as a "
            f"decompression bomb: at most {allowed_bytes(stored)} are unpacked ({RATIO} times what is stored, at "
            f"least {FLOOR}, never above {CEILING}). If it is what it should be, store it uncompressed"
        )


class BoundedReader:
    """A stream that ends in an error when it yields more than a file of `stored` bytes may unpack to."""

    def __init__(self, stream: Readable, where: str, stored: int) -> None:
        self._stream, self._where, self._stored = stream, where, stored
        self._given = 0

    def read(self, size: int = -1) -> bytes:
        left = allowed_bytes(self._stored) - self._given + 1
        data = self._stream.read(left if size < 0 else min(size, left))
        self._given += len(data)
        require_bounded(self._where, self._given, self._stored)
        return data


@contextmanager
def open_maybe_gzip(path: Path) -> Iterator[BoundedReader]:
    """Open a file, unpacked if it is gzipped, as a stream that ends where a bomb begins."""
    with path.open("rb") as raw:
        zipped = raw.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        raw.seek(0)
        stream: Readable = gzip.GzipFile(fileobj=raw) if zipped else raw
        yield BoundedReader(stream, str(path), path.stat().st_size)


def require_inside(root: Path, path: Path) -> Path:
    """Return the path if it lies in the folder, also after links and `..` are followed."""
    if not path.resolve().is_relative_to(root.resolve()):
        raise ValueError(f"{path} leads out of the folder {root}, to {path.resolve()}: it is not read")
    return path


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn whatever a parser raises on a bad file into a ValueError that names the file.

    Errors of the file system (a missing file, no permission) and missing packages stay what they are.
    """
    try:
        yield
    except ValueError as error:
        if str(path) in str(error):
            raise
        raise ValueError(f"{path} cannot be read: {cut_text(str(error))}") from error
    except ImportError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
            cure = "as a folder of .npy files with a test part, large data are read from disk"
            raise ValueError(f"{path} is damaged, or does not fit into memory: {cure}") from error
        text = cut_text(repr(error))
        raise ValueError(f"{path} is damaged ({text}): remove it or put a good one in its place") from error


def cut_text(text: str) -> str:
    """Return the beginning of a text that may hold any amount of a garbled file."""
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + " …"
