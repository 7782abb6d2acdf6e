"""The clients' own state, for as many clients as there are, at the cost of those that took part.

Each key is one array of rows, in memory that the operating system hands out page by page when it is first
written, and that worker processes share. Large stores live in a temporary file. A round writes into spare rows
and takes effect as a whole when it is committed: a worker that is killed, or a round that is cut short, leaves
the state as it was before.
"""

import mmap
import tempfile

import numpy as np
import torch
from numpy.typing import NDArray

from fedwcm.core.types import Ints, State
from fedwcm.utils.temporary_pages import claim, no_room

IN_MEMORY = 2**30
"""Bytes up to which the rows of one key are kept in memory; above, in a sparse temporary file."""

RowIndices = NDArray[np.int32]


class ClientStore:
    """State of N clients, given the shapes of one client's. A method without client state costs nothing.

    Row 0 is never written: it is what clients without state have.
    """

    def __init__(self, clients: int, template: State) -> None:
        self.round = 0
        """The round after which clients have this state; while one is being committed, already that one."""
        self.saved: dict[int, tuple[int, str]] = {}
        """The file that holds each client's present state, by its round and digest, for those that have one."""
        self._columns = {key: _Column(clients, value[0]) for key, value in template.items()}
        count = clients if template else 0
        self._row = _shared_rows(count)
        self._next = _shared_rows(count)
        none: Ints = np.zeros(0, dtype=np.int64)
        self._reserved, self._replaced = none, (0, none, self._row[none])
        self._free: RowIndices = np.zeros(0, dtype=np.int32)
        self._used = 1

    @property
    def keeps_anything(self) -> bool:
        """Whether clients have state at all."""
        return bool(self._columns)

    @property
    def bytes_per_client(self) -> int:
        return sum(column.row_bytes for column in self._columns.values())

    def visited_clients(self) -> Ints:
        """Return the clients that have state, by ascending id."""
        return np.flatnonzero(self._row)

    def has(self, ids: Ints) -> NDArray[np.bool_]:
        """Return which of these clients have taken part before."""
        return self._row[ids] > 0

    def read(self, ids: Ints, device: torch.device) -> State:
        """Return a copy of the state of these clients, one row each."""
        return {key: column.rows[self._at(self._row, ids)].to(device) for key, column in self._columns.items()}

    def accepts(self, ids: Ints, state: State) -> bool:
        """Return whether this could be the state of these clients."""
        return (
            self.knows(ids)
            and state.keys() == self._columns.keys()
            and all(
                state[key].shape == (len(ids), *column.rows.shape[1:]) for key, column in self._columns.items()
            )
        )

    def knows(self, ids: Ints) -> bool:
        """Return whether these are numbers of clients."""
        return ids.ndim == 1 and ids.dtype == np.int64 and bool(((ids >= 0) & (ids < len(self._row))).all())

    def write(self, ids: Ints, state: State) -> None:
        """Replace the state of these clients at once."""
        self.reserve(ids)
        self.stage(ids, state)
        self.commit(self.round, ids)

    def reserve(self, ids: Ints) -> None:
        """Make room for the next state of these clients, replacing any earlier reservation."""
        if not self._columns:
            return
        *_, replaced = self._replaced
        free = np.concatenate([self._free, self._next[self._reserved], replaced[replaced > 0]])
        if len(free) < len(ids):
            grown = self._used + len(ids) - len(free)
            for column in self._columns.values():
                column.fill(grown)
            free = np.concatenate([free, np.arange(self._used, grown, dtype=np.int32)])
            self._used = grown
        self._next[ids], self._free = free[: len(ids)], free[len(ids) :]
        self._reserved, self._replaced = ids, (self.round, ids[:0], replaced[:0])

    def stage(self, ids: Ints, state: State) -> None:
        """Write the next state of clients with a reservation. Any process may call this, any number of times."""
        for key, column in self._columns.items():
            column.rows[self._at(self._next, ids)] = state[key].to("cpu", column.rows.dtype)

    def commit(self, round_: int, ids: Ints) -> None:
        """Make what was staged the state of these clients after this round; the others keep theirs."""
        if not self._columns:
            return
        self._replaced = (self.round, ids, self._row[ids])
        self.round = round_
        self._row[ids] = self._next[ids]
        self._reserved = np.setdiff1d(self._reserved, ids)
        self._forget_files(ids)

    def rollback(self, round_: int) -> None:
        """Return to the state after this round if the one after it was committed, wholly or in part."""
        if self.round > round_:
            self.round, ids, rows = self._replaced
            self._row[ids], self._reserved = rows, np.union1d(self._reserved, ids)
            self._forget_files(ids)
            self._replaced = (self.round, ids[:0], rows[:0])

    def _forget_files(self, ids: Ints) -> None:
        for client in ids.tolist() if self.saved else ():
            self.saved.pop(client, None)

    def _at(self, table: RowIndices, ids: Ints) -> torch.Tensor:
        return torch.from_numpy(table[ids].astype(np.int64))


class _Column:
    """The rows of one key: at most two per client, and one that stays zero."""

    def __init__(self, clients: int, row: torch.Tensor) -> None:
        self.row_bytes = row.numel() * row.element_size()
        count = 2 * clients + 1
        size = count * self.row_bytes
        self._file = None
        if clients * self.row_bytes > IN_MEMORY:
            self._file = tempfile.TemporaryFile(prefix="fedwcm-clients-")  # noqa: SIM115 (open as long as this)
            self._file.truncate(size)
        pages = mmap.mmap(-1 if self._file is None else self._file.fileno(), max(1, size))
        flat = torch.frombuffer(pages, dtype=torch.uint8, count=max(1, size))[:size]  # of a row without numbers, 0
        self.rows = flat.view(row.dtype).view(count, *row.shape)

    def fill(self, rows: int) -> None:
        """Claim the disk space of this many rows."""
        if self._file is None:
            return
        try:
            claim(self._file.fileno(), rows * self.row_bytes)
        except OSError as error:
            raise no_room(error, rows * self.row_bytes, "the clients' state") from None


def _shared_rows(clients: int) -> RowIndices:
    return np.frombuffer(mmap.mmap(-1, max(1, 4 * clients)), dtype=np.int32, count=clients)
