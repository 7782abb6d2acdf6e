"""Sum the class counts of all clients, in plain text or under encryption."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from flwr.app import RecordDict

from fedwcm.core.types import Ints
from fedwcm.flower.checks import UnusableError, items, shown, whole
from fedwcm.flower.client_directory import ClientDirectory
from fedwcm.flower.records import to_bytes_record

CountingProtocol = Callable[[ClientDirectory, list[int], int], tuple[list[int], Ints]]
"""Sums the class counts of these clients; returns the clients that answered, and the totals."""


def plain_counting(directory: ClientDirectory, clients: list[int], classes: int) -> tuple[list[int], Ints]:
    """Every client sends its counts to the server, which adds them and discards them."""
    rows: dict[int, Ints] = {}

    def receive(client: int, content: RecordDict) -> None:
        rows[client] = _counts(content, classes, int(directory.samples[client]))

    directory.ask("query.counts", dict.fromkeys(clients, RecordDict()), receive)
    totals: Ints = np.array(list(rows.values()), dtype=np.int64).reshape(-1, classes).sum(axis=0)
    return sorted(rows), totals


def _counts(content: RecordDict, classes: int, samples: int) -> Ints:
    """One client's counts: one for each class, as many samples as it says that it has."""
    if "counts" not in content.metric_records:
        raise UnusableError("its counts cannot be read: the record 'counts' is missing")
    listed = items(dict(content.metric_records["counts"]), "counts")
    if len(listed) != classes:
        raise UnusableError(f"it counts {len(listed)} classes, the model has {classes}")
    counts: Ints = np.array([whole({"counts": n}, "counts", 0, samples) for n in listed], dtype=np.int64)
    if counts.sum() != samples:
        raise UnusableError(f"its counts {shown(listed)} add up to {counts.sum()}, it has {samples} samples")
    return counts


def encrypted_counting(directory: ClientDirectory, clients: list[int], classes: int) -> tuple[list[int], Ints]:
    """The server adds encrypted counts, and one of the clients decrypts the sum: see `fedwcm.privacy`."""
    from fedwcm.privacy import Server

    def transport(requests: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
        contents = {int(name): to_bytes_record(data) for name, data in requests.items()}
        replies: dict[int, bytes] = {}

        def receive(client: int, content: RecordDict) -> None:
            replies[client] = _encrypted(content)

        directory.ask("query.encrypted", contents, receive)
        for client, data in sorted(replies.items()):
            yield str(client), data

    result = Server(tuple(map(str, clients)), classes).run(transport)
    return [int(name) for name in result.contributors], result.totals


def _encrypted(content: RecordDict) -> bytes:
    """One client's message of the encrypted protocol."""
    data = content.config_records["encrypted"].get("data") if "encrypted" in content.config_records else None
    if not isinstance(data, bytes):
        raise UnusableError(f"its encrypted message is {shown(data)}: it must be bytes")
    return data


COUNTING_PROTOCOLS: dict[str, CountingProtocol] = {"none": plain_counting, "he": encrypted_counting}
