"""The whole protocol in one process. Clients and server share no memory and exchange bytes."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from fedwcm.privacy.client import MIN_CONTRIBUTORS, Client
from fedwcm.privacy.server import ClassTotals, Receive, Server, Transport


def sum_counts(
    counts: ArrayLike | Mapping[str, ArrayLike],
    *,
    key_holders: int = 1,
    min_contributors: int = MIN_CONTRIBUTORS,
    rng: np.random.Generator | None = None,
) -> ClassTotals:
    """The exact class totals of these clients, as the server learns them under encryption.

    Args:
        counts: one row per client and one column per class, or a mapping from names to rows; without names the
            clients are "0", "1", ….
        key_holders: number of clients that hold a key; each decrypts the sum of its group.
        min_contributors: the smallest sum that is decrypted.
        rng: draws the key holders; unpredictable by default.
    """
    rows = _named_rows(counts)
    clients = {name: Client(name, row, min_contributors=min_contributors) for name, row in rows.items()}
    classes = len(next(iter(rows.values())))
    server = Server(tuple(rows), classes, key_holders=key_holders, min_contributors=min_contributors, rng=rng)
    return server.run(loopback(clients))


def loopback(clients: Mapping[str, Client]) -> Transport:
    """A transport to clients in this process, one after the other."""

    def deliver(requests: Mapping[str, bytes], receive: Receive) -> None:
        for name, request in requests.items():
            receive(name, clients[name].answer(request))

    return deliver


def _named_rows(counts: ArrayLike | Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    if isinstance(counts, Mapping):
        rows = {str(name): np.asarray(row) for name, row in counts.items()}
    else:
        table = np.asarray(counts)
        if table.ndim != 2:
            raise ValueError(f"counts must be a (clients × classes) array, not of shape {table.shape}")
        rows = {str(k): row for k, row in enumerate(table)}
    shapes = {row.shape for row in rows.values()}
    if len(shapes) != 1:
        raise ValueError(f"counts must have the same classes for every client, not shapes {sorted(shapes)}")
    return rows
