"""Memory in a temporary file: pages that the system writes to disk when it is short of memory."""

import mmap
import os
import tempfile
from pathlib import Path


def temporary_pages(size: int, purpose: str, folder: Path | None = None) -> mmap.mmap:
    """Map this many bytes of an unnamed temporary file, freed with the mapping; OSError if there is no room.

    Args:
        purpose: what they are for, which an error says.
        folder: of the file; that of temporary files (`TMPDIR`) by default.
    """
    with tempfile.TemporaryFile(prefix="fedwcm-", dir=folder) as file:
        try:
            claim(file.fileno(), size)
        except OSError as error:
            raise no_room(error, size, purpose, folder) from None
        return mmap.mmap(file.fileno(), size)


def claim(file: int, size: int) -> None:
    """Give an open file this size, and take the room up now where the system can.

    To find out while writing to a mapping that there is no room would end the process.
    """
    if os.fstat(file).st_size < size:
        os.ftruncate(file, size)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)


def no_room(error: OSError, size: int, purpose: str, folder: Path | None = None) -> OSError:
    """Return the error for a disk without room, with the cure."""
    where = str(folder or tempfile.gettempdir())
    cure = "free some" if folder else "free some, or set TMPDIR to a larger disk"
    text = f"no room for {purpose} ({error.strerror or error}): {size:,} bytes are needed; {cure}"
    return OSError(error.errno, text, where)
