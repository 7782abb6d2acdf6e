"""What the privacy tests share: a skip with its reason, and transports on which things go wrong."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwcm.privacy import ClassTotals, Client, Receive, Server, Transport, loopback
from fedwcm.privacy.messages import Decrypted, DecryptRequest, size_limit
from fedwcm.privacy.wire import Message

needs_tenseal = pytest.mark.skipif(
    find_spec("tenseal") is None, reason="TenSEAL is not installed: pip install 'fedwcm[he]'"
)

Replies = Iterable[tuple[str, bytes]]
Tamper = Callable[[str, Message, bytes], Replies]
"""Client name, the request it got, its honest reply → what reaches the server in its place."""

CLASSES = 4


def some_counts(clients: int, classes: int = CLASSES, top: int = 10**6) -> dict[str, NDArray[np.int64]]:
    """Counts under names that are no indices."""
    table = np.random.default_rng(clients).integers(0, top, (clients, classes))
    return {f"client-{k}": row for k, row in enumerate(table)}


def clients_of(counts: Mapping[str, NDArray[np.int64]], min_contributors: int = 3) -> dict[str, Client]:
    return {name: Client(name, row, min_contributors=min_contributors) for name, row in counts.items()}


def tampered(clients: Mapping[str, Client], tamper: Tamper, classes: int = CLASSES) -> Transport:
    """A loopback where `tamper` decides what becomes of each reply."""
    honest = loopback(clients)

    def deliver(requests: Mapping[str, bytes], receive: Receive) -> None:
        def altered(name: str, reply: bytes) -> None:
            for sender, data in tamper(name, Message.from_bytes(requests[name], size_limit(classes)), reply):
                receive(sender, data)

        honest(requests, altered)

    return deliver


def run(
    counts: Mapping[str, NDArray[np.int64]], tamper: Tamper, *, key_holders: int = 1, seed: int = 0
) -> ClassTotals:
    """A whole session over a transport where `tamper` has its way."""
    classes = len(next(iter(counts.values())))
    server = Server(tuple(counts), classes, key_holders=key_holders, rng=np.random.default_rng(seed))
    return server.run(tampered(clients_of(counts), tamper, classes))


def total_of(counts: Mapping[str, NDArray[np.int64]], without: Iterable[str] = ()) -> list[int]:
    absent = set(without)
    totals: list[int] = np.sum([row for name, row in counts.items() if name not in absent], axis=0).tolist()
    return totals


def lie_once(lied: list[str], change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Tamper:
    """The first key holder that decrypts a sum, whose name is noted, says that other totals came out."""

    def lie(name: str, request: Message, reply: bytes) -> Replies:
        if isinstance(request, DecryptRequest) and not lied:
            lied.append(name)
            decrypted = Decrypted.from_bytes(reply, len(reply))
            reply = replace(decrypted, totals=change(decrypted.totals)).to_bytes()
        return [(name, reply)]

    return lie
