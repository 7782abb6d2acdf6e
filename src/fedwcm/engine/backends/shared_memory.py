"""Tensors that one process writes and another reads, in memory that both have mapped.

The memory belongs to no file system that a container could keep small (`/dev/shm` is 64 MB by default there):
it is an anonymous file of Linux, or a temporary file that has no name where there are none.
"""

import errno
import mmap
import os
import tempfile
from dataclasses import dataclass

import torch

from fedwcm.core.types import State
from fedwcm.utils.temporary_pages import claim

ALIGNMENT = 64
"""Bytes of a cache line, at which every tensor begins."""


@dataclass(frozen=True)
class Place:
    """Where a tensor is."""

    offset: int
    dtype: torch.dtype
    shape: torch.Size

    def view(self, pages: mmap.mmap) -> torch.Tensor:
        """Return the tensor that is there, not a copy."""
        count = self.shape.numel()
        if not count:  # `frombuffer` takes no empty ones
            return torch.empty(self.shape, dtype=self.dtype)
        return torch.frombuffer(pages, dtype=self.dtype, count=count, offset=self.offset).view(self.shape)


BufferLayout = dict[str, Place]


class Outbox:
    """The writer's side. Whoever reads needs the file anew whenever `version` has grown."""

    def __init__(self) -> None:
        self.file, self.size, self.version = -1, 0, 0
        self._pages: mmap.mmap | None = None

    def write(self, state: State) -> BufferLayout:
        """Put these tensors where those before were; returns where each is."""
        layout, size = _laid_out(state)
        if size > self.size or self._pages is None:
            self.close()
            self.file, self.size, self.version = open_shared(size), size, self.version + 1
            self._pages = mmap.mmap(self.file, size)
        for key, value in state.items():
            layout[key].view(self._pages).copy_(value)
        return layout

    def close(self) -> None:
        """Give the file back; the memory goes when nobody has it mapped any more."""
        if self.file >= 0:
            os.close(self.file)
        self.file = -1


class Inbox:
    """The reader's side."""

    def __init__(self) -> None:
        self._pages: mmap.mmap | None = None

    def attach(self, file: int, size: int) -> None:
        """Map the writer's memory; the file is not needed any more."""
        self._pages = mmap.mmap(file, size)
        os.close(file)

    def read(self, layout: BufferLayout) -> State:
        """Return the tensors as the writer has them now, not copies."""
        assert self._pages is not None, "the writer sends its file first"
        return {key: place.view(self._pages) for key, place in layout.items()}


def open_shared(size: int) -> int:
    """Open a file of this size that only processes that are given it can see: in memory, or else on disk."""
    reasons = []
    for make in (_in_memory, _on_disk):
        try:
            return make(size)
        except OSError as error:
            reasons.append(error.strerror or str(error))
    raise OSError(
        errno.ENOMEM,
        f"no {size:,} bytes to share with worker processes, neither in memory ({reasons[0]}) nor in "
        f"{tempfile.gettempdir()} ({reasons[1]}): set TMPDIR to a larger disk, or use --backend sequential",
    )


def _in_memory(size: int) -> int:
    if not hasattr(os, "memfd_create"):
        raise OSError(errno.ENOSYS, "this system has no anonymous files")
    return _claim(os.memfd_create("fedwcm"), size)


def _on_disk(size: int) -> int:
    with tempfile.TemporaryFile(prefix="fedwcm-shared-") as file:
        return _claim(os.dup(file.fileno()), size)


def _claim(file: int, size: int) -> int:
    """Take the room up now; the file is closed if there is none."""
    try:
        claim(file, size)
    except OSError:
        os.close(file)
        raise
    return file


def _laid_out(state: State) -> tuple[BufferLayout, int]:
    layout, end = {}, 0
    for key, value in state.items():
        layout[key] = Place(end, value.dtype, value.shape)
        end += -(-value.numel() * value.element_size() // ALIGNMENT) * ALIGNMENT
    return layout, max(end, ALIGNMENT)
