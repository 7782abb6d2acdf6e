"""A lock on the folder of a run or of a comparison, so that no two processes write there.

It is an operating-system lock on a small file, which also says who holds it. The lock ends with its process,
however that ends. POSIX record locks, unlike `flock`, are not inherited by forked workers, which would keep them
after the death of their parent, and they work across machines on NFS. Within one process they never conflict, so
this process remembers the folders that it has locked.
"""

import errno
import json
import os
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedwcm.core.checks import require
from fedwcm.experiment.files import writing

NAME = ".lock"
FAR = 2**30
"""Position of the locked byte: beyond the text, which others must be able to read where locks are mandatory."""

NO_LINK = getattr(os, "O_NOFOLLOW", 0)
"""A link in place of the lock is refused: writing would overwrite what it points to."""

UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
"""Errors of file systems without locks."""

PATIENCE = 30.0
"""Seconds in which a run that was killed saves its progress and ends."""

POLL = 0.05
"""Seconds between two attempts to get a lock that another holds."""

_held: set[Path] = set()


class FolderInUseError(ValueError):
    """Another process writes in the folder."""


def require_folder(folder: Path) -> None:
    """Raise if this is a file."""
    require(folder.is_dir() or not folder.exists(), "out", str(folder), "a folder: this is a file")


def wait_until_free(folder: Path) -> None:
    """Wait for a run that was killed to save its progress and to end."""
    with locked(folder, PATIENCE):
        pass


@contextmanager
def locked(folder: Path, patience: float = 0.0) -> Iterator[None]:
    """Hold the lock of a folder, which is made if need be, and removed if nothing was put there.

    Args:
        folder: what to lock.
        patience: seconds to wait for whoever holds it.

    Raises:
        FolderInUseError: another holds it, and still does after these seconds.
    """
    file = _acquire_within(folder, patience)
    resolved = folder.resolve()
    _held.add(resolved)
    try:
        yield
    finally:
        _held.discard(resolved)
        with suppress(OSError):
            (folder / NAME).unlink()
        os.close(file)
        with suppress(OSError):
            folder.rmdir()  # only if it is empty


def _acquire_within(folder: Path, patience: float) -> int:
    deadline = time.monotonic() + patience
    while True:
        try:
            with writing(folder / NAME, "Choose another folder, or make room or give permission there"):
                return _acquire(folder)
        except FolderInUseError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(POLL)


def _acquire(folder: Path) -> int:
    """Lock the file, and write into it who holds it. A file that was removed meanwhile is locked anew."""
    if folder.resolve() in _held:
        raise _in_use(folder, _this_process())
    path = folder / NAME
    require_folder(folder)
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | NO_LINK, 0o644)
        except FileNotFoundError:  # whoever held the lock has just removed the empty folder
            continue
        try:
            _lock(file)
        except OSError as error:
            holder = _holder(file)
            os.close(file)
            if error.errno not in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
                raise
            raise _in_use(folder, holder) from None
        with suppress(FileNotFoundError):
            if os.fstat(file).st_ino == path.stat().st_ino:
                break
        os.close(file)
    os.truncate(file, 0)
    os.write(file, json.dumps(_this_process()).encode())
    return file


def _this_process() -> dict[str, object]:
    return {"pid": os.getpid(), "host": socket.gethostname()}


def _lock(file: int) -> None:
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(file, FAR, os.SEEK_SET)
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
            os.lseek(file, 0, os.SEEK_SET)
        else:
            import fcntl

            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, FAR)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        warnings.warn("this file system has no locks: make sure that no other run uses this folder", stacklevel=2)


def _holder(file: int) -> dict[str, object]:
    try:
        holder = json.loads(os.pread(file, 1000, 0) if hasattr(os, "pread") else b"{}")
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _in_use(folder: Path, holder: dict[str, object]) -> FolderInUseError:
    who = f"process {holder['pid']} on {holder.get('host')}" if "pid" in holder else "another process"
    return FolderInUseError(f"{folder} is in use by {who}: wait for it, stop it, or choose another folder")
