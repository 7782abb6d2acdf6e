"""Sums that are repeated over other clients: their differences must not be the counts of a few."""

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pytest

from fedwcm.privacy import ClassTotals, ProtocolError, Receive, Server, Transport, loopback
from fedwcm.privacy.encoding import Ints
from fedwcm.privacy.groups import Disclosed
from fedwcm.privacy.messages import DecryptRequest
from fedwcm.privacy.wire import Message
from tests.privacy.support import (
    CLASSES,
    Replies,
    clients_of,
    lie_once,
    needs_tenseal,
    some_counts,
    tampered,
    total_of,
)

LEAST = 3


class Session:
    """A session in which sums are disbelieved, and clients leave when one was seen."""

    def __init__(self, clients: int, *, disbelieved: int, leaving: Sequence[str]) -> None:
        self.counts = some_counts(clients)
        self.seen: list[tuple[frozenset[str], Ints]] = []
        self._disbelieved, self._leaving = disbelieved, leaving

    def run(self) -> ClassTotals:
        server = Server(tuple(self.counts), CLASSES, check_totals=self._check, rng=np.random.default_rng(0))
        return server.run(self._transport())

    def differences(self) -> list[frozenset[str]]:
        """The clients in the difference of each two sums that were seen."""
        sets = [contributors for contributors, _ in self.seen]
        return [one ^ other for one in sets for other in sets if one != other]

    def _check(self, contributors: Sequence[str], totals: Ints) -> None:
        self.seen.append((frozenset(contributors), totals.copy()))
        if len(self.seen) <= self._disbelieved:
            raise ProtocolError("cannot be true")

    def _transport(self) -> Transport:
        clients = clients_of(self.counts)

        def deliver(requests: Mapping[str, bytes], receive: Receive) -> None:
            gone = self._leaving if len(self.seen) >= self._disbelieved else ()
            loopback(clients)({name: data for name, data in requests.items() if name not in gone}, receive)

        return deliver


@needs_tenseal
def test_a_disbelieved_sum_is_not_repeated_without_one_of_its_clients() -> None:
    session = Session(8, disbelieved=1, leaving=["client-5"])
    with pytest.raises(ProtocolError, match="differs from sums decrypted before by fewer than 3 clients"):
        session.run()
    assert len(session.seen) == 1


@needs_tenseal
def test_a_disbelieved_sum_is_repeated_without_as_many_clients_as_hide_each_other() -> None:
    leaving = ["client-1", "client-4", "client-5"]
    session = Session(8, disbelieved=1, leaving=leaving)
    result = session.run()
    assert set(result.left_out) == set(leaving)
    assert result.totals.tolist() == total_of(session.counts, without=leaving)
    assert all(len(clients) >= LEAST for clients in session.differences())


@needs_tenseal
def test_the_parts_of_a_disbelieved_group_do_not_leave_one_client_over() -> None:
    """Twice the whole group was seen: both parts without a client, and the whole, would give it away."""
    session = Session(12, disbelieved=2, leaving=["client-5"])
    result = session.run()
    sets = [contributors for contributors, _ in session.seen]
    assert [len(contributors) for contributors in sets[:2]] == [12, 12]
    assert len(sets) == 3, "one of the parts is in no sum"
    assert 6 <= len(result.left_out) <= 7
    assert "client-5" in result.left_out
    assert result.totals.tolist() == total_of(session.counts, without=result.left_out)


def test_parts_are_told_apart_by_the_sums_that_clients_are_in() -> None:
    first = Disclosed().with_sum("abcdef")
    assert first.with_sum("abcdef") == first
    assert first.with_sum("abcdefg").smallest == 1
    assert first.with_sum("abcde").smallest == 1
    assert first.with_sum("abc").with_sum("def").smallest == 3
    assert first.with_sum("abc").with_sum("de").smallest == 1


@pytest.mark.parametrize("seed", range(20))
def test_no_combination_of_sums_concerns_fewer_clients_than_the_smallest_part(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = [str(number) for number in range(9)]
    sums = [rng.permutation(names)[: rng.integers(2, 9)].tolist() for _ in range(3)]
    disclosed = Disclosed()
    for contributors in sums:
        disclosed = disclosed.with_sum(contributors)
    rows = np.array([[name in contributors for name in names] for contributors in sums], dtype=np.int64)
    combined = np.array(list(product(range(-3, 4), repeat=3))) @ rows
    concerned = np.count_nonzero(combined, axis=1)
    assert concerned[concerned > 0].min() >= disclosed.smallest


# --- key holders that confirm each other ------------------------------------------------------------


def swap(totals: tuple[int, ...]) -> tuple[int, ...]:
    """Two classes change places, which no check of their sum can see."""
    return (*totals[1::-1], *totals[2:])


@needs_tenseal
@pytest.mark.parametrize("clients", [3, 8])
def test_a_key_holder_that_lies_within_all_bounds_is_found_by_two_others(clients: int) -> None:
    counts, lied = some_counts(clients), list[str]()
    server = Server(tuple(counts), CLASSES, confirmations=2)
    result = server.run(tampered(clients_of(counts), lie_once(lied, swap)))
    assert result.totals.tolist() == total_of(counts)
    wrong = "its totals are not those that two others decrypted"
    assert [(refused.sender, refused.reason) for refused in result.refused] == [(lied[0], wrong)]
    assert not server.unconfirmed
    unchecked = Server(tuple(counts), CLASSES).run(tampered(clients_of(counts), lie_once([], swap)))
    assert unchecked.totals.tolist() != total_of(counts), "one key holder alone is believed"


@needs_tenseal
def test_totals_that_nobody_could_confirm_are_used_and_said_to_be_unconfirmed() -> None:
    """A client leaves after the first sum: a second one without it would show what it has."""
    counts, decrypted = some_counts(5), list[str]()

    def leave(name: str, request: Message, reply: bytes) -> Replies:
        if isinstance(request, DecryptRequest):
            decrypted.append(name)
        leaver = next((other for other in counts if other != decrypted[0]), "") if decrypted else ""
        return [] if name == leaver else [(name, reply)]

    server = Server(tuple(counts), CLASSES, confirmations=2)
    result = server.run(tampered(clients_of(counts), leave))
    assert result.totals.tolist() == total_of(counts)
    assert server.unconfirmed == decrypted[:1]


@needs_tenseal
def test_a_session_with_one_client_more_than_an_earlier_one_decrypts_nothing() -> None:
    """The difference would be what that client has."""
    counts = some_counts(5)
    first = Server(tuple(counts)[:4], CLASSES)
    first.run(loopback(clients_of(counts)))
    with pytest.raises(ProtocolError, match="differs from sums decrypted before by fewer than 3 clients"):
        Server(tuple(counts), CLASSES, disclosed=first.disclosed).run(loopback(clients_of(counts)))
    again = Server(tuple(counts)[:4], CLASSES, disclosed=first.disclosed).run(loopback(clients_of(counts)))
    assert len(again.contributors) == 4
