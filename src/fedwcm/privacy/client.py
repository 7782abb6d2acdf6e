"""The client's side: a contributor encrypts its counts, a key holder opens one sum.

`Client` is both, and speaks bytes: a request in, a reply out. It is all that an engine needs to connect.
"""

import secrets
import struct
from typing import Self

from numpy.typing import ArrayLike

from fedwcm.privacy.bfv import PublicContext, SecretKey
from fedwcm.privacy.encoding import (
    MAX_CONTRIBUTORS,
    checked_counts,
    ciphertexts_needed,
    from_slots,
    slots_used,
    to_slots,
)
from fedwcm.privacy.messages import (
    MAX_NAME_BYTES,
    Contribution,
    CountRequest,
    Declined,
    KeyRequest,
    Opened,
    OpenRequest,
    PublicKey,
    Reply,
    Unreadable,
    size_limit,
)
from fedwcm.privacy.wire import SESSION_BYTES, Message, ProtocolError

MIN_CONTRIBUTORS = 3
"""By default no smaller sum is opened: of two, either client could subtract itself and read the other."""

_KEY_ID_BYTES = 16
_NO_SESSION = bytes(SESSION_BYTES)


def checked_name(name: str) -> str:
    """A client's name as it fits in a message."""
    if not 1 <= len(name.encode()) <= MAX_NAME_BYTES:
        raise ValueError(f"name must have 1 to {MAX_NAME_BYTES} bytes, not {len(name.encode())}")
    return name


def checked_minimum(min_contributors: int) -> int:
    """The smallest sum that is opened: two at least, or it would be one client's counts."""
    if not 2 <= min_contributors <= MAX_CONTRIBUTORS:
        raise ValueError(f"min_contributors must be from 2 to {MAX_CONTRIBUTORS:,}, not {min_contributors}")
    return min_contributors


class Contributor:
    """Holds one client's class counts and gives them away only encrypted."""

    def __init__(self, name: str, counts: ArrayLike) -> None:
        self.name = checked_name(name)
        self._counts = checked_counts(counts)

    @property
    def classes(self) -> int:
        """How many classes the counts are over."""
        return len(self._counts)

    def contribute(self, request: CountRequest) -> Contribution:
        """The counts under the key of the request."""
        if request.classes != self.classes:
            raise ProtocolError(f"{request.classes} classes are asked for where {self.classes} are counted")
        context = PublicContext(request.context)
        ciphertexts = tuple(context.encrypt(slots) for slots in to_slots(self._counts))
        return Contribution(request.session, self.name, request.key_id, ciphertexts)


class KeyHolder:
    """Holds a secret key that opens one sum, once, and only a sum of enough contributors."""

    _LAYOUT = struct.Struct(f">4s{SESSION_BYTES}s{_KEY_ID_BYTES}sI")
    _MAGIC = b"FWSK"

    def __init__(self, name: str, session: bytes, key_id: bytes, min_contributors: int, secret: bytes) -> None:
        self.name = name
        self.session = session
        self.key_id = key_id
        self.min_contributors = min_contributors
        self._secret: bytes | None = secret

    @classmethod
    def generate(cls, name: str, session: bytes, min_contributors: int) -> tuple[Self, PublicKey]:
        """A new key pair: the half that stays and the half that travels."""
        secret, public = SecretKey.generate()
        key_id = secrets.token_bytes(_KEY_ID_BYTES)
        holder = cls(name, session, key_id, min_contributors, secret)
        return holder, PublicKey(session, name, key_id, min_contributors, public)

    @property
    def spent(self) -> bool:
        """Whether the key has decrypted, and is gone."""
        return self._secret is None

    def open(self, request: OpenRequest) -> Opened | Unreadable:
        """The totals of a sum. How many contributors are in it is read inside it, not believed.

        The key answers once, readable or not: a second answer could be subtracted from the first.
        """
        if (request.session, request.key_id) != (self.session, self.key_id):
            raise ProtocolError("the sum is under another key")
        if request.contributors < self.min_contributors:
            raise ProtocolError(
                f"a sum of {request.contributors} contributors stays closed; "
                f"at least {self.min_contributors} must be in it"
            )
        if self._secret is None:
            raise ProtocolError("this key has answered already")
        key, self._secret = SecretKey(self._secret), None
        try:
            totals = _totals(key, request)
        except ProtocolError:
            return Unreadable(self.session, self.name, self.key_id)
        return Opened(self.session, self.name, self.key_id, request.contributors, totals)

    def secret_bytes(self) -> bytes:
        """The key holder itself, for its own client to keep between two requests. Never send this."""
        if self._secret is None:
            raise ProtocolError("this key has answered already; nothing of it is left to keep")
        return self._LAYOUT.pack(self._MAGIC, self.session, self.key_id, self.min_contributors) + self._secret

    @classmethod
    def from_secret_bytes(cls, name: str, data: bytes) -> Self:
        """The key holder that `secret_bytes` put away."""
        if len(data) <= cls._LAYOUT.size or not data.startswith(cls._MAGIC):
            raise ProtocolError("these bytes are no key holder")
        _, session, key_id, min_contributors = cls._LAYOUT.unpack_from(data)
        return cls(name, session, key_id, min_contributors, data[cls._LAYOUT.size :])


def _totals(key: SecretKey, request: OpenRequest) -> tuple[int, ...]:
    if request.classes < 1 or len(request.ciphertexts) != ciphertexts_needed(request.classes):
        raise ProtocolError(f"{len(request.ciphertexts)} ciphertexts do not carry {request.classes} classes")
    if request.contributors > MAX_CONTRIBUTORS:
        raise ProtocolError(f"a sum of {request.contributors:,} contributors may have wrapped")
    pairs = zip(request.ciphertexts, slots_used(request.classes), strict=True)
    sums = [key.decrypt(data, slots) for data, slots in pairs]
    return tuple(from_slots(sums, request.contributors).tolist())


class Client:
    """One client: it contributes its counts, and holds a key if it is asked to.

    `min_contributors` is its own rule: as a key holder it opens no smaller sum, whatever the server wants.
    `key_holder` is None unless a key waits for its sum. Where a client does not live from one request to the
    next, keep `key_holder.secret_bytes()` after each answer and hand the key holder in again.
    """

    def __init__(
        self,
        name: str,
        counts: ArrayLike,
        *,
        min_contributors: int = MIN_CONTRIBUTORS,
        key_holder: KeyHolder | None = None,
    ) -> None:
        self.key_holder = key_holder
        self._contributor = Contributor(name, counts)
        self._min_contributors = checked_minimum(min_contributors)

    def answer(self, request: bytes) -> bytes:
        """The reply to a request. What cannot or may not be done is declined, with the reason."""
        session = _NO_SESSION
        try:
            message = Message.from_bytes(request, size_limit(self._contributor.classes))
            session = message.session
            return self._reply(message).to_bytes()
        except ProtocolError as error:
            return Declined(session, self._contributor.name, str(error)).to_bytes()

    def _reply(self, message: Message) -> Reply:
        match message:
            case KeyRequest():
                name = self._contributor.name
                self.key_holder, public = KeyHolder.generate(name, message.session, self._min_contributors)
                return public
            case CountRequest():
                return self._contributor.contribute(message)
            case OpenRequest():
                return self._open(message)
        raise ProtocolError(f"a client does not answer {type(message).__name__}")

    def _open(self, request: OpenRequest) -> Reply:
        if self.key_holder is None:
            raise ProtocolError("no key is held")
        reply = self.key_holder.open(request)
        self.key_holder = None
        return reply
