"""Sum the class counts of all clients, in plain text or under encryption."""

from collections.abc import Callable, Iterator, Mapping
from typing import cast

import numpy as np
from flwr.app import RecordDict

from fedwcm.core.types import Ints
from fedwcm.flower.client_directory import ClientDirectory, usable
from fedwcm.flower.records import from_bytes_record, to_bytes_record

CountingProtocol = Callable[[ClientDirectory, list[int], int], tuple[list[int], Ints]]
"""Sums the class counts of these clients; returns the clients that answered, and the totals."""


def plain_counting(directory: ClientDirectory, clients: list[int], classes: int) -> tuple[list[int], Ints]:
    """Every client sends its counts to the server, which adds them and discards them."""
    answers = usable(directory.ask("query.counts", dict.fromkeys(clients, RecordDict())), "counting")
    rows = [cast(list[int], reply.content.metric_records["counts"]["counts"]) for reply in answers.values()]
    totals: Ints = np.array(rows, dtype=np.int64).reshape(-1, classes).sum(axis=0)
    return list(answers), totals


def encrypted_counting(directory: ClientDirectory, clients: list[int], classes: int) -> tuple[list[int], Ints]:
    """The server adds encrypted counts, and one of the clients decrypts the sum: see `fedwcm.privacy`."""
    from fedwcm.privacy import Server

    def transport(requests: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
        contents = {int(name): to_bytes_record(data) for name, data in requests.items()}
        for client, reply in usable(directory.ask("query.encrypted", contents), "counting").items():
            yield str(client), from_bytes_record(reply.content)

    result = Server(tuple(map(str, clients)), classes).run(transport)
    return [int(name) for name in result.contributors], result.totals


COUNTING_PROTOCOLS: dict[str, CountingProtocol] = {"none": plain_counting, "he": encrypted_counting}
