"""The messages of the protocol. The server asks, a client answers; every reply names its sender."""

from dataclasses import dataclass

from fedwcm.privacy.bfv import MAX_CIPHERTEXT_BYTES, MAX_CONTEXT_BYTES
from fedwcm.privacy.encoding import ciphertexts_needed
from fedwcm.privacy.wire import Message

MAX_NAME_BYTES = 256
_SMALL_FIELDS_BYTES = 4096
"""Room for a frame, the ids, a name and a reason."""


def size_limit(classes: int) -> int:
    """No message of a session over this many classes is longer."""
    ciphertexts = ciphertexts_needed(classes) * (MAX_CIPHERTEXT_BYTES + 4)
    return max(MAX_CONTEXT_BYTES, ciphertexts, 8 * classes) + _SMALL_FIELDS_BYTES


@dataclass(frozen=True)
class Reply(Message):
    """What a client sends to the server."""

    sender: str


@dataclass(frozen=True)
class KeyRequest(Message, kind=1):
    """Server to a future key holder: make a key pair for this session."""


@dataclass(frozen=True)
class PublicKey(Reply, kind=2):
    """Key holder to server: the public half, and how many contributors a sum must have to be opened."""

    key_id: bytes
    min_contributors: int
    context: bytes


@dataclass(frozen=True)
class CountRequest(Message, kind=3):
    """Server to contributor: encrypt your class counts under this key."""

    key_id: bytes
    classes: int
    context: bytes


@dataclass(frozen=True)
class Contribution(Reply, kind=4):
    """Contributor to server: its class counts, encrypted."""

    key_id: bytes
    ciphertexts: tuple[bytes, ...]


@dataclass(frozen=True)
class OpenRequest(Message, kind=5):
    """Server to key holder: open the sum of this many contributors."""

    key_id: bytes
    classes: int
    contributors: int
    ciphertexts: tuple[bytes, ...]


@dataclass(frozen=True)
class Opened(Reply, kind=6):
    """Key holder to server: the class totals of the sum."""

    key_id: bytes
    contributors: int
    totals: tuple[int, ...]


@dataclass(frozen=True)
class Unreadable(Reply, kind=7):
    """Key holder to server: what was opened is no sum of that many contributions. What it was stays unsaid."""

    key_id: bytes


@dataclass(frozen=True)
class Declined(Reply, kind=8):
    """Client to server: I do not do that, and why."""

    reason: str
