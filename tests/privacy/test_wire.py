"""Messages come back as they went, and nothing else is read."""

import hashlib
import struct
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwcm.privacy.messages import (
    Contribution,
    CountRequest,
    Declined,
    Decrypted,
    DecryptRequest,
    KeyRequest,
    PublicKey,
    Reply,
    Unreadable,
    size_limit,
)
from fedwcm.privacy.wire import FRAME_BYTES, MAGIC, Message, ProtocolError

LIMIT = 1 << 20
SESSION = bytes(range(16))
ids = st.binary(min_size=16, max_size=16)
names = st.text(min_size=1, max_size=20)
numbers = st.integers(0, 2**64 - 1)
blobs = st.lists(st.binary(max_size=50), max_size=4).map(tuple)

messages = st.one_of(
    st.builds(KeyRequest, ids),
    st.builds(PublicKey, ids, names, ids, numbers, st.binary(max_size=99)),
    st.builds(CountRequest, ids, ids, numbers, st.binary(max_size=99)),
    st.builds(Contribution, ids, names, ids, blobs),
    st.builds(DecryptRequest, ids, ids, numbers, numbers, blobs),
    st.builds(Decrypted, ids, names, ids, numbers, st.lists(numbers, max_size=9).map(tuple)),
    st.builds(Unreadable, ids, names, ids),
    st.builds(Declined, ids, names, st.text(max_size=40)),
)


def framed(kind: int, body: bytes, version: int = 1) -> bytes:
    """A frame that is right about itself, whatever its body is."""
    head = struct.pack(">4sBBI", MAGIC, version, kind, len(body)) + body
    return head + hashlib.sha256(head).digest()


@given(messages)
def test_every_message_comes_back_as_it_went(message: Message) -> None:
    data = message.to_bytes()
    assert Message.from_bytes(data, LIMIT) == message
    assert type(message).from_bytes(data, LIMIT) == message
    assert Message.from_bytes(data, LIMIT).to_bytes() == data


@given(messages, st.data())
def test_one_changed_byte_is_refused(message: Message, draw: st.DataObject) -> None:
    data = bytearray(message.to_bytes())
    place = draw.draw(st.integers(0, len(data) - 1))
    data[place] ^= draw.draw(st.integers(1, 255))
    with pytest.raises(ProtocolError):
        Message.from_bytes(bytes(data), LIMIT)


@given(messages, st.data())
def test_a_cut_message_is_refused(message: Message, draw: st.DataObject) -> None:
    data = message.to_bytes()
    with pytest.raises(ProtocolError):
        Message.from_bytes(data[: draw.draw(st.integers(0, len(data) - 1))], LIMIT)


@given(st.binary(max_size=200))
def test_noise_in_a_good_frame_is_refused_or_is_a_message(body: bytes) -> None:
    for kind in range(256):
        try:
            message = Message.from_bytes(framed(kind, body), LIMIT)
        except ProtocolError:
            continue
        assert message.to_bytes() == framed(kind, body)


def test_a_message_over_the_limit_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(ProtocolError, match="101 bytes are more than the 100 allowed"):
        Message.from_bytes(b"x" * 101, 100)


def test_a_list_that_claims_more_items_than_there_are_bytes_is_refused() -> None:
    body = struct.pack(">I", 16) + SESSION + struct.pack(">I", 1) + b"a" + struct.pack(">I", 16) + SESSION
    with pytest.raises(ProtocolError, match="are left"):
        Contribution.from_bytes(framed(Contribution.kind, body + struct.pack(">I", 2**32 - 1)), LIMIT)


def test_another_version_or_magic_is_refused_by_name() -> None:
    with pytest.raises(ProtocolError, match="version 2"):
        Message.from_bytes(framed(1, b"", version=2), LIMIT)
    with pytest.raises(ProtocolError, match="starts with"):
        Message.from_bytes(b"XXXX" + bytes(FRAME_BYTES), LIMIT)


def test_another_kind_than_expected_is_refused() -> None:
    data = KeyRequest(SESSION).to_bytes()
    with pytest.raises(ProtocolError, match="is not Contribution"):
        Contribution.from_bytes(data, LIMIT)
    with pytest.raises(ProtocolError, match="is not Reply"):
        Reply.from_bytes(data, LIMIT)


def test_bytes_after_the_last_field_are_refused() -> None:
    body = struct.pack(">I", 16) + SESSION
    assert KeyRequest.from_bytes(framed(1, body), LIMIT) == KeyRequest(SESSION)
    with pytest.raises(ProtocolError, match="follow the last field"):
        KeyRequest.from_bytes(framed(1, body + b"!"), LIMIT)


def test_a_session_of_another_length_is_refused() -> None:
    with pytest.raises(ProtocolError, match="session must have 16 bytes, not 3"):
        KeyRequest(b"abc")


def test_every_reply_names_its_sender_and_every_message_its_session() -> None:
    for message in Message.kinds.values():
        names_of = {field.name for field in fields(message)}
        assert "session" in names_of
        assert ("sender" in names_of) == issubclass(message, Reply)


def test_the_size_limit_covers_every_message_and_grows_with_the_classes() -> None:
    assert size_limit(10) > 135_000, "a public context"
    assert size_limit(1000) > 2 * 89_000, "two ciphertexts"
    assert size_limit(10**6) > 8 * 10**6, "the totals"
