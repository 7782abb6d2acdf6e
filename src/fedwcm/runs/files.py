"""Files that are replaced as a whole: whatever happens, the old one is there or the new one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError


class StorageError(OSError):
    """A file of a run cannot be written."""


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file so that a crash, or somebody who reads at the same time, meets the old content or the new."""
    with replacing(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A draft to write, which then takes the place of the file; on disk before the name is, and then the name."""
    draft = path.with_name(f"{path.name}.tmp")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield draft
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(draft, path)
            _keep_names(path.parent)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def _keep_names(folder: Path) -> None:
    """Have the names in a folder on disk, as far as the system can: without it, a power loss may undo a rename."""
    if os.name != "posix":
        return
    with suppress(OSError):  # some file systems have nothing of the kind
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say what to do if the file cannot be written."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StorageError(
            f"{path} cannot be written: {reason}. What was saved before is whole: make room, or give permission, "
            "and resume"
        ) from error
