"""The clients' own state, for as many clients as there are, at the cost of those that took part.

Each key is one array with a row a client, in memory that the operating system hands out page by page when it
is first written, and that worker processes share. Large stores live in a temporary file.
"""

import mmap
import tempfile

import numpy as np
import torch

from fedwcm.core.types import Ints, State

IN_MEMORY = 2**30
"""Bytes up to which the rows of one key are kept in memory; above, in a sparse temporary file."""


class ClientStore:
    """State of N clients, given the shapes of one client's. A method without client state costs nothing."""

    def __init__(self, clients: int, template: State) -> None:
        self._rows = {key: _allocate(clients, value[0]) for key, value in template.items()}
        self._visited = np.frombuffer(_pages(max(1, clients)), dtype=np.bool_)[:clients]

    @property
    def keeps_anything(self) -> bool:
        """Whether clients have state at all."""
        return bool(self._rows)

    def visited(self) -> Ints:
        """The clients that have state, by ascending id."""
        return np.flatnonzero(self._visited)

    def has(self, ids: Ints) -> bool:
        """Whether all of these clients have taken part before."""
        return bool(self._visited[ids].all())

    def read(self, ids: Ints, device: torch.device) -> State:
        """A copy of the state of these clients, one row each."""
        return {key: rows[torch.from_numpy(ids)].to(device) for key, rows in self._rows.items()}

    def write(self, ids: Ints, state: State) -> None:
        """Replace the state of these clients."""
        for key, rows in self._rows.items():
            rows[torch.from_numpy(ids)] = state[key].to("cpu", rows.dtype)
        if self._rows:
            self._visited[ids] = True


def _allocate(clients: int, row: torch.Tensor) -> torch.Tensor:
    size = clients * row.numel() * row.element_size()
    flat = torch.frombuffer(_pages(max(1, size)), dtype=torch.uint8, count=size)
    return flat.view(row.dtype).view(clients, *row.shape)


def _pages(size: int) -> mmap.mmap:
    """Zeroed memory that forked processes share and that is taken up only where it is written."""
    if size <= IN_MEMORY:
        return mmap.mmap(-1, size)
    with tempfile.TemporaryFile(prefix="fedwcm-clients-") as file:
        file.truncate(size)
        return mmap.mmap(file.fileno(), size)
