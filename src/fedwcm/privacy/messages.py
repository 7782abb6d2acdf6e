"""The messages of the protocol. The server sends requests, clients reply; every reply names its sender."""

from dataclasses import dataclass

from fedwcm.privacy.bfv import MAX_CIPHERTEXT_BYTES, MAX_CONTEXT_BYTES
from fedwcm.privacy.encoding import ciphertexts_needed
from fedwcm.privacy.wire import Message

MAX_NAME_BYTES = 256
_SMALL_FIELDS_BYTES = 4096
"""Space for the frame, the ids, a name and a reason."""


def size_limit(classes: int) -> int:
    """Return the maximum size of a message in a session with this many classes."""
    ciphertexts = ciphertexts_needed(classes) * (MAX_CIPHERTEXT_BYTES + 4)
    return max(MAX_CONTEXT_BYTES, ciphertexts, 8 * classes) + _SMALL_FIELDS_BYTES


@dataclass(frozen=True)
class Reply(Message):
    """What a client sends to the server."""

    sender: str


@dataclass(frozen=True)
class KeyRequest(Message, kind=1):
    """Server to a future key holder: generate a key pair for this session."""


@dataclass(frozen=True)
class PublicKey(Reply, kind=2):
    """Key holder to server: the public key, and how many contributors a sum needs to be decrypted."""

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
class DecryptRequest(Message, kind=5):
    """Server to key holder: decrypt the sum of this many contributors."""

    key_id: bytes
    classes: int
    contributors: int
    ciphertexts: tuple[bytes, ...]


@dataclass(frozen=True)
class Decrypted(Reply, kind=6):
    """Key holder to server: the class totals of the sum."""

    key_id: bytes
    contributors: int
    totals: tuple[int, ...]


@dataclass(frozen=True)
class Unreadable(Reply, kind=7):
    """Key holder to server: this is not a sum of that many contributions. What it was is not revealed."""

    key_id: bytes


@dataclass(frozen=True)
class Declined(Reply, kind=8):
    """Client to server: the request is declined, for this reason."""

    reason: str
