"""Whatever one client does, the round goes on with the others, and says who is missing."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from fedwcm.privacy import Client, ProtocolError, Server, loopback
from fedwcm.privacy.bfv import MAX_CIPHERTEXT_BYTES, SecretKey
from fedwcm.privacy.encoding import Ints
from fedwcm.privacy.messages import (
    Contribution,
    CountRequest,
    Declined,
    Decrypted,
    DecryptRequest,
    KeyRequest,
    PublicKey,
    size_limit,
)
from fedwcm.privacy.wire import Message
from tests.privacy.support import (
    CLASSES,
    Replies,
    clients_of,
    lie_once,
    needs_tenseal,
    run,
    some_counts,
    tampered,
    total_of,
)

pytestmark = needs_tenseal

BAD = "client-2"
LIMIT = size_limit(CLASSES)
Spoil = Callable[[bytes], bytes]


def silent(who: str, kind: type[Message]) -> Callable[[str, Message, bytes], Replies]:
    """`who` never answers requests of this kind."""

    def tamper(name: str, request: Message, reply: bytes) -> Replies:
        return [] if name == who and isinstance(request, kind) else [(name, reply)]

    return tamper


def first_silent(kind: type[Message], times: int = 1) -> Callable[[str, Message, bytes], Replies]:
    """The first so many clients that are asked this do not answer."""
    asked: Counter[str] = Counter()

    def tamper(name: str, request: Message, reply: bytes) -> Replies:
        asked.update(["asked"] if isinstance(request, kind) else [])
        return [] if isinstance(request, kind) and asked["asked"] <= times else [(name, reply)]

    return tamper


def spoiled(change: Callable[[Contribution], bytes]) -> Callable[[str, Message, bytes], Replies]:
    """The contribution of `BAD` arrives changed."""

    def tamper(name: str, request: Message, reply: bytes) -> Replies:
        if name == BAD and isinstance(request, CountRequest):
            reply = change(Contribution.from_bytes(reply, LIMIT))
        return [(name, reply)]

    return tamper


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]


def with_ciphertext(contribution: Contribution, data: bytes) -> bytes:
    return replace(contribution, ciphertexts=(data,)).to_bytes()


def test_a_contributor_that_vanishes_is_left_out_and_named() -> None:
    counts = some_counts(5)
    result = run(counts, silent(BAD, CountRequest))
    assert result.left_out == (BAD,)
    assert result.totals.tolist() == total_of(counts, without=[BAD])
    assert BAD not in result.contributors


@pytest.mark.parametrize("kind", [KeyRequest, DecryptRequest])
@pytest.mark.parametrize("times", [1, 3])
def test_a_key_holder_that_vanishes_is_replaced_and_nobody_is_lost(kind: type[Message], times: int) -> None:
    counts = some_counts(6)
    result = run(counts, first_silent(kind, times), key_holders=2)
    assert result.totals.tolist() == total_of(counts)
    assert result.left_out == ()


def test_a_late_answer_of_a_replaced_key_holder_is_not_used() -> None:
    """Its group has contributed again, perhaps without one of them."""
    counts, late = some_counts(5), list[tuple[str, bytes]]()

    def tamper(name: str, request: Message, reply: bytes) -> Replies:
        if not isinstance(request, DecryptRequest):
            return [(name, reply)]
        late.append((name, reply))
        return late if len(late) == 2 else []

    result = run(counts, tamper)
    assert late[0][0] in {refused.sender for refused in result.refused}
    assert result.key_holders == (late[1][0],)
    assert result.totals.tolist() == total_of(counts)


def test_when_no_key_holder_ever_answers_the_error_says_so() -> None:
    with pytest.raises(ProtocolError, match="no client is left to hold a key"):
        run(some_counts(4), first_silent(DecryptRequest, times=99))


def test_when_too_few_contributors_are_left_nothing_is_opened() -> None:
    opened = []

    def tamper(name: str, request: Message, reply: bytes) -> Replies:
        opened.extend([name] if isinstance(request, DecryptRequest) else [])
        return [] if isinstance(request, CountRequest) and name != BAD else [(name, reply)]

    with pytest.raises(ProtocolError, match="its group of 1 is too small"):
        run(some_counts(5), tamper)
    assert opened == []


def test_a_group_that_has_become_too_small_joins_another() -> None:
    counts = some_counts(6)
    result = run(counts, silent(BAD, CountRequest), key_holders=2)
    assert result.left_out == (BAD,)
    assert result.totals.tolist() == total_of(counts, without=[BAD])
    assert len(result.key_holders) == 1


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: b"\x80\x04]q.",
        lambda data: data[: len(data) // 2],
        lambda data: flipped(data, 40_000),
        lambda data: data + b"\0",
        lambda data: bytes(LIMIT + 1),
    ],
    ids=["empty", "noise", "cut", "damaged", "longer", "oversized"],
)
def test_a_malformed_message_is_refused_without_ending_the_round(spoil: Spoil) -> None:
    counts = some_counts(4)
    result = run(counts, spoiled(lambda contribution: spoil(contribution.to_bytes())))
    assert result.left_out == (BAD,)
    assert [refused.sender for refused in result.refused] == [BAD]
    assert result.totals.tolist() == total_of(counts, without=[BAD])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: with_ciphertext(c, b""), "0 slots in 0 ciphertexts"),
        (lambda c: with_ciphertext(c, b"\x08\x15"), "21 slots in 0 ciphertexts"),
        (lambda c: with_ciphertext(c, b"not a ciphertext"), "cannot be read"),
        (lambda c: with_ciphertext(c, c.ciphertexts[0][:-9]), "cannot be read"),
        (lambda c: with_ciphertext(c, bytes(MAX_CIPHERTEXT_BYTES + 1)), "at most 135,168 are allowed"),
        (lambda c: replace(c, ciphertexts=()).to_bytes(), "0 ciphertexts where 1 are expected"),
        (lambda c: replace(c, key_id=bytes(16)).to_bytes(), "under another key"),
        (lambda c: replace(c, session=bytes(16)).to_bytes(), "to another session"),
        (lambda c: replace(c, sender="client-0").to_bytes(), "speaks for 'client-0'"),
        (
            lambda c: Decrypted(c.session, c.sender, c.key_id, 3, (0,) * CLASSES).to_bytes(),
            "where Contribution is",
        ),
    ],
)
def test_a_good_frame_around_a_bad_contribution_is_refused_by_name(
    change: Callable[[Contribution], bytes], message: str
) -> None:
    counts = some_counts(4)
    result = run(counts, spoiled(change))
    (refused,) = result.refused
    assert refused.sender == BAD
    assert message in refused.reason
    assert result.left_out == (BAD,)
    assert result.totals.tolist() == total_of(counts, without=[BAD])


def test_a_contribution_sent_twice_counts_once() -> None:
    counts = some_counts(4)
    result = run(counts, lambda name, request, reply: [(name, reply)] * (2 if name == BAD else 1))
    assert result.totals.tolist() == total_of(counts)
    assert result.left_out == ()
    assert {refused.sender for refused in result.refused} == {BAD}


def test_a_second_contribution_is_refused_even_if_it_is_fresh() -> None:
    counts = some_counts(4)

    def again(name: str, request: Message, reply: bytes) -> Replies:
        if name == BAD and isinstance(request, CountRequest):
            return [(name, reply), (name, Client(name, counts[name]).contribute(request).to_bytes())]
        return [(name, reply)]

    result = run(counts, again)
    assert [refused.reason for refused in result.refused] == ["has contributed already"]
    assert result.totals.tolist() == total_of(counts)


def test_a_ciphertext_replayed_under_another_name_is_refused() -> None:
    counts = some_counts(4)
    sent: dict[str, Contribution] = {}

    def copy_the_first(name: str, request: Message, reply: bytes) -> Replies:
        if isinstance(request, CountRequest):
            sent[name] = Contribution.from_bytes(reply, LIMIT)
            first = next(iter(sent.values()))
            if len(sent) == 2:
                reply = replace(first, sender=name).to_bytes()
        return [(name, reply)]

    result = run(counts, copy_the_first)
    copycat = tuple(sent)[1]
    assert result.refused[0].reason == "replays a ciphertext"
    assert result.left_out == (copycat,)
    assert result.totals.tolist() == total_of(counts, without=[copycat])


def test_a_contribution_of_an_earlier_session_is_refused() -> None:
    counts = some_counts(4)
    recorded: dict[str, bytes] = {}

    def record(name: str, request: Message, reply: bytes) -> Replies:
        if isinstance(request, CountRequest):
            recorded[name] = reply
        return [(name, reply)]

    run(counts, record)
    result = run(counts, spoiled(lambda contribution: recorded[BAD]))
    assert result.refused[0].reason == "belongs to another session"
    assert result.left_out == (BAD,)


def test_a_reply_that_nobody_asked_for_is_refused() -> None:
    counts = some_counts(4)
    result = run(counts, lambda name, request, reply: [(name, reply), ("stranger", reply)])
    assert result.totals.tolist() == total_of(counts)
    assert {refused.sender for refused in result.refused} == {"stranger"}


def under_another_key(contribution: Contribution) -> bytes:
    request = CountRequest(contribution.session, contribution.key_id, CLASSES, SecretKey.generate()[1])
    return with_ciphertext(contribution, Client("anyone", [1] * CLASSES).contribute(request).ciphertexts[0])


def test_a_readable_ciphertext_that_is_no_contribution_costs_only_the_part_it_is_in() -> None:
    """Under another key it is indistinguishable to the server; the sum opens to noise, and is not used."""
    counts = some_counts(12)
    result = run(counts, spoiled(under_another_key))
    assert BAD in result.left_out
    assert len(result.left_out) < 6, "at most one less than twice min_contributors"
    assert result.totals.tolist() == total_of(counts, without=result.left_out)
    assert {refused.sender for refused in result.refused} == set(result.left_out)
    assert all("whose sum could not be read" in refused.reason for refused in result.refused)


def test_one_nonsense_ciphertext_costs_its_sender_alone_and_names_it() -> None:
    """A sum that nobody can read tells nothing, so it may be tried without each of them in turn."""
    counts = some_counts(5)
    result = run(counts, spoiled(under_another_key))
    assert result.left_out == (BAD,)
    assert result.totals.tolist() == total_of(counts, without=[BAD])
    reason = "with its contribution the sum of its group cannot be read"
    assert [(refused.sender, refused.reason) for refused in result.refused] == [(BAD, reason)]


def test_a_key_holder_with_a_stricter_rule_than_its_group_is_passed_over() -> None:
    counts = some_counts(5)
    clients = clients_of(counts)
    for name in tuple(counts)[:4]:
        clients[name] = Client(name, counts[name], min_contributors=6)
    result = Server(tuple(counts), CLASSES, rng=np.random.default_rng(0)).run(loopback(clients))
    assert result.key_holders == ("client-4",)
    assert result.totals.tolist() == total_of(counts)


def test_a_key_holder_that_sends_its_secret_key_is_refused_and_replaced() -> None:
    counts = some_counts(4)
    leaked: list[str] = []

    def leak(name: str, request: Message, reply: bytes) -> Replies:
        if isinstance(request, KeyRequest) and not leaked:
            leaked.append(name)
            secret, _ = SecretKey.generate()
            reply = replace(PublicKey.from_bytes(reply, LIMIT), context=secret).to_bytes()
        return [(name, reply)]

    result = run(counts, leak)
    assert "secret key" in result.refused[0].reason
    assert leaked[0] not in result.key_holders
    assert result.totals.tolist() == total_of(counts)


@pytest.mark.parametrize("totals", [(0,) * (CLASSES + 1), (2**60,) * CLASSES], ids=["too many", "too large"])
def test_an_opening_that_cannot_be_the_sum_is_refused_and_the_group_asks_another(totals: tuple[int, ...]) -> None:
    counts, lied = some_counts(4), list[str]()
    result = run(counts, lie_once(lied, lambda _: totals))
    assert result.refused[0].sender == lied[0]
    assert result.totals.tolist() == total_of(counts)


def believing(most: int) -> Callable[[Sequence[str], Ints], None]:
    """Refuse totals that are nothing, or more than this for each contributor."""

    def check(contributors: Sequence[str], totals: Ints) -> None:
        if not 0 < totals.sum() <= most * len(contributors):
            raise ProtocolError(f"totals of {totals.sum()} cannot be true")

    return check


def test_totals_that_cannot_be_true_cost_their_key_holder_its_part_and_nobody_else() -> None:
    counts, lied = some_counts(4), list[str]()
    lie = lie_once(lied, lambda _: (0,) * CLASSES)
    server = Server(tuple(counts), CLASSES, check_totals=believing(CLASSES * 10**6))
    result = server.run(tampered(clients_of(counts), lie))
    assert [(refused.sender, refused.reason) for refused in result.refused] == [
        (lied[0], "totals of 0 cannot be true")
    ]
    assert result.totals.tolist() == total_of(counts)


def test_a_contribution_that_makes_every_sum_untrue_costs_only_the_part_it_is_in() -> None:
    """Two key holders agree, so it is not they who lie."""
    counts = some_counts(12, top=10)
    clients = clients_of({**counts, BAD: np.full(CLASSES, 10**9)})
    server = Server(tuple(counts), CLASSES, check_totals=believing(CLASSES * 10), rng=np.random.default_rng(0))
    result = server.run(loopback(clients))
    assert BAD in result.left_out
    assert len(result.left_out) < 6
    assert result.totals.tolist() == total_of(counts, without=result.left_out)
    assert any("whose sum cannot be true" in refused.reason for refused in result.refused)


def test_a_client_with_other_classes_declines_and_is_left_out() -> None:
    counts = some_counts(4)
    clients = clients_of(counts)
    clients[BAD] = Client(BAD, [1] * (CLASSES + 1))
    server = Server(tuple(counts), CLASSES, rng=np.random.default_rng(0))
    result = server.run(loopback(clients))
    assert result.left_out == (BAD,)
    assert "5 are counted" in result.refused[0].reason


def test_a_reason_to_decline_is_passed_on_in_part() -> None:
    counts = some_counts(4)

    def wordy(name: str, request: Message, reply: bytes) -> Replies:
        if name == BAD and isinstance(request, CountRequest):
            reply = Declined(request.session, name, "why " * 500).to_bytes()
        return [(name, reply)]

    (refused,) = run(counts, wordy).refused
    assert refused.reason == "declines: " + "why " * 75
