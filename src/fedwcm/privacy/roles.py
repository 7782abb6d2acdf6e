"""The client's side: a contributor encrypts its counts, a key holder opens one sum.

`Client` is both, and speaks bytes: a request in, a reply out. It is all that an engine needs to connect.
"""

import secrets
import struct
from dataclasses import dataclass
from typing import Self

from numpy.typing import ArrayLike

from fedwcm.privacy.bfv import PublicContext, SecretKey
from fedwcm.privacy.limbs import MAX_CONTRIBUTORS, checked_counts, from_slots, slots_used, to_slots
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
from fedwcm.privacy.wire import Message, ProtocolError

MIN_CONTRIBUTORS = 3
"""By default a sum of fewer is not opened: of two, each could subtract itself and read the other."""
ID_BYTES = 16


def checked_name(name: str) -> str:
    """A client's name as it fits in a message."""
    if not 1 <= len(name.encode()) <= MAX_NAME_BYTES:
        raise ValueError(f"name must have 1 to {MAX_NAME_BYTES} bytes, not {len(name.encode())}")
    return name


def checked_minimum(min_contributors: int) -> int:
    """The smallest sum that is opened: two at least, or the sum would be one client's counts."""
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


@dataclass(frozen=True)
class KeyHolder:
    """Holds a secret key that answers one request to open a sum, and only one of enough contributors.

    `Client` sees to the "one": it drops the key as it answers.
    """

    name: str
    session: bytes
    key_id: bytes
    min_contributors: int
    secret: bytes

    _LAYOUT = struct.Struct(f">4s{ID_BYTES}s{ID_BYTES}sI")
    _MAGIC = b"FWSK"

    @classmethod
    def generate(cls, name: str, session: bytes, min_contributors: int) -> tuple[Self, PublicKey]:
        """A new key pair: the half that stays and the half that travels."""
        secret, public = SecretKey.generate()
        key_id = secrets.token_bytes(ID_BYTES)
        holder = cls(name, session, key_id, min_contributors, secret)
        return holder, PublicKey(session, name, key_id, min_contributors, public)

    def open(self, request: OpenRequest) -> Opened | Unreadable:
        """The totals of a sum. The number of contributors is read inside the sum, not believed."""
        if (request.session, request.key_id) != (self.session, self.key_id):
            raise ProtocolError("the sum is for another key")
        if request.contributors < self.min_contributors:
            raise ProtocolError(
                f"a sum of {request.contributors} contributors is not opened; at least {self.min_contributors} must be in it"
            )
        try:
            totals = self._totals(request)
        except ProtocolError as error:
            return Unreadable(self.session, self.name, self.key_id, str(error))
        return Opened(self.session, self.name, self.key_id, request.contributors, totals)

    def _totals(self, request: OpenRequest) -> tuple[int, ...]:
        used = slots_used(request.classes)
        if len(request.ciphertexts) != len(used) or request.contributors > MAX_CONTRIBUTORS:
            raise ProtocolError(f"{len(request.ciphertexts)} ciphertexts of {request.contributors:,} contributors")
        key = SecretKey(self.secret)
        sums = [key.decrypt(data, slots) for data, slots in zip(request.ciphertexts, used, strict=True)]
        return tuple(from_slots(sums, request.contributors).tolist())

    def secret_bytes(self) -> bytes:
        """The key holder itself, to be kept by its own client between two requests. Never send this."""
        head = self._LAYOUT.pack(self._MAGIC, self.session, self.key_id, self.min_contributors)
        return head + self.secret

    @classmethod
    def from_secret_bytes(cls, name: str, data: bytes) -> Self:
        """The key holder that `secret_bytes` put away."""
        if len(data) <= cls._LAYOUT.size or not data.startswith(cls._MAGIC):
            raise ProtocolError("these bytes are no key holder")
        _, session, key_id, min_contributors = cls._LAYOUT.unpack_from(data)
        return cls(name, session, key_id, min_contributors, data[cls._LAYOUT.size :])


class Client:
    """One client: it contributes its counts, and holds a key if it is asked to.

    `min_contributors` is its own rule: as a key holder it opens no smaller sum, whatever the server wants.
    `key_holder` is None unless a key waits for its sum. Where a client does not live from request to request,
    keep `key_holder.secret_bytes()` after each answer and hand it in again.
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
        session = bytes(ID_BYTES)
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

    def _open(self, request: OpenRequest) -> Opened | Unreadable:
        # A key answers once, readable or not: a second answer could be subtracted from the first.
        holder, self.key_holder = self.key_holder, None
        if holder is None:
            raise ProtocolError("no key is held")
        return holder.open(request)
