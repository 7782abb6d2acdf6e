"""What reaches the server, and what a key holder answers to one that asks for more than it should."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from fedwcm.privacy import Client, KeyHolder, ProtocolError, Receive, Server, loopback
from fedwcm.privacy.bfv import PublicContext, SecretKey, tenseal
from fedwcm.privacy.messages import (
    Contribution,
    CountRequest,
    Declined,
    Decrypted,
    DecryptRequest,
    PublicKey,
    Reply,
    Unreadable,
    size_limit,
)
from fedwcm.privacy.wire import Message
from tests.privacy.support import CLASSES, clients_of, needs_tenseal, some_counts, total_of

pytestmark = needs_tenseal

SESSION = bytes(range(16))
LIMIT = size_limit(CLASSES)
ROWS = [[3, 1, 4, 1], [5, 9, 2, 6], [5, 3, 5, 8]]


@dataclass
class Overheard:
    """All bytes that the server got, the secret keys that existed, and the server itself."""

    replies: list[bytes]
    secrets: list[bytes]
    server: Server
    counts: Mapping[str, Any]


@pytest.fixture(scope="module")
def overheard() -> Overheard:
    counts = some_counts(7)
    clients = clients_of(counts)
    server = Server(tuple(counts), CLASSES, key_holders=2, rng=np.random.default_rng(0))
    heard = Overheard([], [], server, counts)
    deliver = loopback(clients)

    def listen(requests: Mapping[str, bytes], receive: Receive) -> None:
        def hear(name: str, reply: bytes) -> None:
            heard.replies.append(reply)
            if (holder := clients[name].key_holder) is not None:
                heard.secrets.append(holder.secret_bytes())
            receive(name, reply)

        deliver(requests, hear)

    assert server.run(listen).totals.tolist() == total_of(counts)
    return heard


def parsed(heard: Overheard) -> list[Reply]:
    return [Reply.from_bytes(data, LIMIT) for data in heard.replies]


def test_every_byte_that_reaches_the_server_is_a_field_of_a_known_reply(overheard: Overheard) -> None:
    assert [reply.to_bytes() for reply in parsed(overheard)] == overheard.replies
    kinds = [type(reply) for reply in parsed(overheard)]
    assert (kinds.count(PublicKey), kinds.count(Contribution), kinds.count(Decrypted)) == (2, 7, 2)
    assert len(kinds) == 11


def test_no_piece_of_a_secret_key_reaches_the_server(overheard: Overheard) -> None:
    everything = b"".join(overheard.replies)
    keys = set(overheard.secrets)
    assert len(keys) == 2
    for secret in keys:
        # The first bytes are parameters, which are public; the rest is the key.
        pieces = [secret[start : start + 24] for start in range(1000, len(secret) - 24, 997)]
        assert len(pieces) > 60
        assert not any(piece in everything for piece in pieces)


def test_the_contexts_that_travel_hold_a_public_key_and_nothing_else(overheard: Overheard) -> None:
    contexts = [reply.context for reply in parsed(overheard) if isinstance(reply, PublicKey)]
    for data in contexts:
        context = tenseal().context_from(data)
        assert context.has_public_key()
        assert not context.is_private()
        assert not context.has_secret_key()
        assert not context.has_relin_keys()
        assert not context.has_galois_keys()
        assert len(data) == pytest.approx(134_150, rel=0.005)


def test_a_contribution_has_the_papers_size_and_shows_nothing_of_the_counts() -> None:
    _, public = KeyHolder.generate("k", SESSION, 3)
    request = CountRequest(SESSION, public.key_id, CLASSES, public.context)
    sizes = {}
    for name, counts in (("none", [0] * CLASSES), ("many", [10**9] * CLASSES)):
        ciphertexts = [Client(name, counts).contribute(request).ciphertexts[0] for _ in range(2)]
        assert ciphertexts[0] != ciphertexts[1]
        sizes[name] = len(ciphertexts[0])
    assert sizes["none"] == pytest.approx(88_556, rel=0.003)
    assert sizes["many"] == pytest.approx(sizes["none"], rel=0.003)


def sum_request(public: PublicKey, rows: list[list[int]], claimed: int) -> DecryptRequest:
    """The sum of these rows under a key, said to be of so many contributors."""
    request = CountRequest(SESSION, public.key_id, CLASSES, public.context)
    context, total = PublicContext(public.context), None
    for k, row in enumerate(rows):
        (ciphertext,) = Client(str(k), row).contribute(request).ciphertexts
        total = context.add(total, ciphertext, 1 + 5 * CLASSES)
    assert total is not None
    return DecryptRequest(SESSION, public.key_id, CLASSES, claimed, (total.serialize(),))


def test_one_clients_ciphertext_is_not_opened_whatever_the_server_claims() -> None:
    holder, public = KeyHolder.generate("k", SESSION, 3)
    with pytest.raises(ProtocolError, match="a sum of 1 contributors is not decrypted: it must have at least 3"):
        holder.decrypt(sum_request(public, ROWS[:1], 1))
    assert holder.decrypt(sum_request(public, ROWS[:1], 3)) == Unreadable(SESSION, "k", public.key_id)


def test_a_key_opens_one_sum_once() -> None:
    holder, public = KeyHolder.generate("k", SESSION, 3)
    request = sum_request(public, ROWS, 3)
    holder.decrypt(request)
    with pytest.raises(ProtocolError, match="used already"):
        holder.decrypt(request)
    with pytest.raises(ProtocolError, match="used already"):
        holder.secret_bytes()


def test_a_key_is_spent_by_an_unreadable_sum_too() -> None:
    holder, public = KeyHolder.generate("k", SESSION, 3)
    assert isinstance(holder.decrypt(sum_request(public, ROWS[:2], 3)), Unreadable)
    with pytest.raises(ProtocolError, match="used already"):
        holder.decrypt(sum_request(public, ROWS, 3))


@pytest.mark.parametrize(
    "change",
    [
        {"ciphertexts": ()},
        {"ciphertexts": (b"",)},
        {"ciphertexts": (b"\x08\xff\xff\xff\xff\x0f",)},
        {"classes": 0, "ciphertexts": ()},
        {"classes": 2**60},
        {"classes": CLASSES + 1},
        {"contributors": 16_385},
    ],
)
def test_a_malformed_sum_is_unreadable_and_opens_nothing(change: dict[str, Any]) -> None:
    holder, public = KeyHolder.generate("k", SESSION, 3)
    assert isinstance(holder.decrypt(replace(sum_request(public, ROWS, 3), **change)), Unreadable)


def test_a_sum_for_another_key_or_session_does_not_spend_the_key() -> None:
    holder, public = KeyHolder.generate("k", SESSION, 3)
    request = sum_request(public, ROWS, 3)
    for other in (replace(request, session=bytes(16)), replace(request, key_id=bytes(16))):
        with pytest.raises(ProtocolError, match="another key"):
            holder.decrypt(other)
    assert isinstance(holder.decrypt(request), Decrypted)


def test_a_key_holder_survives_a_restart_in_its_own_bytes() -> None:
    holder, public = KeyHolder.generate("k", SESSION, 4)
    kept = holder.secret_bytes()
    again = KeyHolder.from_secret_bytes("k", kept)
    assert (again.session, again.key_id, again.min_contributors) == (SESSION, public.key_id, 4)
    rows = [*ROWS, ROWS[0]]
    client = Client("k", ROWS[0], min_contributors=4, key_holder=again)
    reply = Decrypted.from_bytes(client.answer(sum_request(public, rows, 4).to_bytes()), LIMIT)
    assert reply.totals == tuple(np.sum(rows, axis=0).tolist())
    assert client.key_holder is None, "the key is spent"


def test_the_bytes_a_key_holder_keeps_are_no_message() -> None:
    holder, _ = KeyHolder.generate("k", SESSION, 3)
    with pytest.raises(ProtocolError):
        Message.from_bytes(holder.secret_bytes(), 10**6)
    with pytest.raises(ProtocolError, match="not a key holder"):
        KeyHolder.from_secret_bytes("k", b"FWSK")


def test_a_client_declines_what_is_no_request() -> None:
    client = Client("k", ROWS[0])
    for request in (b"", b"noise", Declined(SESSION, "x", "because").to_bytes()):
        assert isinstance(Reply.from_bytes(client.answer(request), LIMIT), Declined)
    open_nothing = DecryptRequest(SESSION, bytes(16), CLASSES, 3, (b"",)).to_bytes()
    assert Declined.from_bytes(client.answer(open_nothing), LIMIT).reason == "this client holds no key"


def other_context() -> bytes:
    """A public context of other parameters than ours."""
    library = tenseal()
    context = library.context(library.SCHEME_TYPE.BFV, poly_modulus_degree=4096, plain_modulus=65_537)
    data: bytes = context.serialize(save_galois_keys=False, save_relin_keys=False)
    return data


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: b"", "cannot be read|no public key|other encryption parameters"),
        (lambda: b"noise", "cannot be read"),
        (lambda: bytes(300_000), "at most"),
        (lambda: SecretKey.generate()[0], "secret key"),
        (other_context, "other encryption parameters"),
    ],
    ids=["empty", "noise", "oversized", "secret", "other"],
)
def test_a_contributor_encrypts_under_no_key_but_a_sound_public_one(make: Any, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        Client("k", ROWS[0]).contribute(CountRequest(SESSION, bytes(16), CLASSES, make()))
