"""How many samples of each class all clients have together: asked in the open, or under encryption."""

from collections.abc import Callable, Iterator, Mapping
from typing import cast

import numpy as np
from flwr.app import RecordDict

from fedwcm.core.types import Ints
from fedwcm.flower.client_directory import ClientDirectory, usable
from fedwcm.flower.records import sealed, unsealed

Counting = Callable[[ClientDirectory, list[int], int], tuple[list[int], Ints]]
"""Counts the classes of these clients: those who answered, and their totals."""


def in_the_open(roster: ClientDirectory, clients: list[int], classes: int) -> tuple[list[int], Ints]:
    """Every client tells the server its counts, which adds them up and forgets them."""
    answers = usable(roster.ask("query.counts", dict.fromkeys(clients, RecordDict())), "counting")
    rows = [cast(list[int], reply.content.metric_records["counts"]["counts"]) for reply in answers.values()]
    totals: Ints = np.array(rows, dtype=np.int64).reshape(-1, classes).sum(axis=0)
    return list(answers), totals


def under_encryption(roster: ClientDirectory, clients: list[int], classes: int) -> tuple[list[int], Ints]:
    """The server adds what it cannot read, and one of the clients opens the sum: see `fedwcm.privacy`."""
    from fedwcm.privacy import Server

    def transport(requests: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
        contents = {int(name): sealed(data) for name, data in requests.items()}
        for client, reply in usable(roster.ask("query.sealed", contents), "counting").items():
            yield str(client), unsealed(reply.content)

    gathered = Server(tuple(map(str, clients)), classes).run(transport)
    return [int(name) for name in gathered.contributors], gathered.totals


COUNTINGS: dict[str, Counting] = {"none": in_the_open, "he": under_encryption}
