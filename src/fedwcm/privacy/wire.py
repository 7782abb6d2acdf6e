"""Serialisation of messages: a versioned, length-prefixed frame with a checksum.

    magic "FWPM" | version u8 | kind u8 | body length u32 | body | SHA-256 of all before

The body is the message's fields in order, big-endian: a number is a u64, text and bytes are a u32 length and the
data, a list is a u32 length and its items. Nothing in it is executed, and nothing is parsed before the length and
the checksum are verified. The checksum detects damage; it does not authenticate the sender, which is the
transport's task.
"""

import hashlib
import struct
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self, get_args, get_type_hints

MAGIC = b"FWPM"
VERSION = 1
_HEAD = struct.Struct(">4sBBI")
_LENGTH = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")
_CHECKSUM_BYTES = 32
FRAME_BYTES = _HEAD.size + _CHECKSUM_BYTES
SESSION_BYTES = 16


class ProtocolError(ValueError):
    """A message, a key or a sum that is refused."""


@dataclass(frozen=True)
class Message:
    """A message between server and client: numbers, text, bytes and lists of them."""

    session: bytes

    kind: ClassVar[int]
    kinds: ClassVar[dict[int, type["Message"]]] = {}

    def __init_subclass__(cls, kind: int | None = None) -> None:
        super().__init_subclass__()
        if kind is not None:
            cls.kind = kind
            Message.kinds[kind] = cls

    def __post_init__(self) -> None:
        if len(self.session) != SESSION_BYTES:
            raise ProtocolError(f"session must have {SESSION_BYTES} bytes, not {len(self.session)}")

    def to_bytes(self) -> bytes:
        """Serialise the message."""
        body = b"".join(_encode(getattr(self, field.name)) for field in fields(self))
        framed = _HEAD.pack(MAGIC, VERSION, self.kind, len(body)) + body
        return framed + hashlib.sha256(framed).digest()

    @classmethod
    def from_bytes(cls, data: bytes, limit: int) -> Self:
        """Read a message; raises a ProtocolError if it is damaged, longer than `limit`, or of another kind."""
        kind, body = _unframe(data, limit)
        message_kind = Message.kinds.get(kind)
        if message_kind is None or not issubclass(message_kind, cls):
            raise ProtocolError(f"kind {kind} is not {cls.__name__}")
        reader = _Reader(body)
        hints = get_type_hints(message_kind)
        values = {field.name: reader.value(hints[field.name]) for field in fields(message_kind)}
        reader.finish()
        return message_kind(**values)


def _unframe(data: bytes, limit: int) -> tuple[int, memoryview]:
    if len(data) > limit:
        raise ProtocolError(f"{len(data):,} bytes are more than the {limit:,} allowed")
    if len(data) < FRAME_BYTES:
        raise ProtocolError(f"{len(data)} bytes are not a message")
    magic, version, kind, length = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise ProtocolError(f"starts with {magic!r}, not with {MAGIC!r}")
    if version != VERSION:
        raise ProtocolError(f"format version {version} is not {VERSION}")
    if length != len(data) - FRAME_BYTES:
        raise ProtocolError(f"{len(data)} bytes where the header says {length + FRAME_BYTES}")
    framed = memoryview(data)[:-_CHECKSUM_BYTES]
    if hashlib.sha256(framed).digest() != data[-_CHECKSUM_BYTES:]:
        raise ProtocolError("the checksum does not match")
    return kind, framed[_HEAD.size :]


def _encode(value: object) -> bytes:
    if isinstance(value, int):
        return _NUMBER.pack(value)
    if isinstance(value, tuple):
        return _LENGTH.pack(len(value)) + b"".join(map(_encode, value))
    data = value.encode() if isinstance(value, str) else value
    assert isinstance(data, bytes), f"a message holds no {type(value).__name__}"
    return _LENGTH.pack(len(data)) + data


class _Reader:
    """Reads values from the front of a body."""

    def __init__(self, body: memoryview) -> None:
        self._rest = body

    def value(self, hint: Any) -> Any:
        """Return the next value, of the type that the field declares."""
        if hint is int:
            return self._unpack(_NUMBER)
        length = self._unpack(_LENGTH)
        if hint is bytes:
            return bytes(self._take(length))
        if hint is str:
            return self._text(length)
        item = get_args(hint)[0]
        return tuple(self.value(item) for _ in range(length))

    def finish(self) -> None:
        """Raise an error if bytes follow the last field."""
        if len(self._rest):
            raise ProtocolError(f"{len(self._rest)} bytes follow the last field")

    def _unpack(self, layout: struct.Struct) -> int:
        (number,) = layout.unpack(self._take(layout.size))
        return int(number)

    def _text(self, length: int) -> str:
        try:
            return str(self._take(length), "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError("a text field is not UTF-8") from error

    def _take(self, length: int) -> memoryview:
        if length > len(self._rest):
            raise ProtocolError(f"a field of {length} bytes where {len(self._rest)} are left")
        taken, self._rest = self._rest[:length], self._rest[length:]
        return taken
