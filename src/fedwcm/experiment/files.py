"""Files that are replaced as a whole: a crash leaves either the old one or the new one."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from fedwcm.utils.json_record import RecordError


class StorageError(OSError):
    """A file of a run cannot be written."""


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file so that a crash, or a concurrent reader, finds either the old content or the new."""
    with replacing(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, value: object, *, indent: int | None = 2, allow_nan: bool = True) -> None:
    """Write a value as a JSON file: readable, or on one line if `indent` is None."""
    replace_file(path, json.dumps(value, indent=indent, allow_nan=allow_nan) + "\n")


def read_json(path: Path) -> object:
    """Return the value in a JSON file."""
    return parse_json(path.read_text(encoding="utf-8"), str(path))


def parse_json(text: str | bytes, where: str) -> object:
    """Return the value in a JSON text; the error names where the text is from."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise RecordError(f"{where}: this is not JSON ({error})") from None


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """Yield a draft to write, which then replaces the file; the draft is synced to disk first, then the new name.

    The mode, less the umask, is set again at the end: safetensors makes its files for the owner alone.
    """
    draft = path.with_name(f"{path.name}.tmp")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.unlink(missing_ok=True)
            draft.touch(mode)
            permissions = draft.stat().st_mode
            yield draft
            draft.chmod(permissions)
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(draft, path)
            _keep_names(path.parent)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def _keep_names(folder: Path) -> None:
    """Put the names in a folder on disk, as far as the system can: without it, a power loss may undo a rename."""
    if os.name != "posix":
        return
    with suppress(OSError):  # some file systems have nothing of the kind
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def require_readable(path: Path) -> None:
    """Raise if a file is there and may not be read: safetensors says that there is no such file."""
    if path.exists() and not os.access(path, os.R_OK):
        raise PermissionError(f"{path} cannot be read: permission denied")


RESUME = "What was saved before is whole: make room, or give permission, and resume"


@contextmanager
def writing(path: Path, cure: str = RESUME) -> Iterator[None]:
    """Say what to do if the file cannot be written."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StorageError(f"{path} cannot be written: {reason}. {cure}") from error
