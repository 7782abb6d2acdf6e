"""The client's side: it encrypts its counts, and as a key holder decrypts one sum.

`Client` does both. It takes a request and returns a reply, both in bytes: an engine has to connect nothing else.
"""

import secrets
import struct
from typing import Self

from numpy.typing import ArrayLike

from fedwcm.core.checks import require
from fedwcm.privacy import encoding, messages
from fedwcm.privacy.bfv import PublicContext, SecretKey
from fedwcm.privacy.wire import SESSION_BYTES, Message, ProtocolError

MIN_CONTRIBUTORS = 3
"""By default no smaller sum is decrypted: of two clients, either could subtract its own counts."""

_KEY_ID_BYTES = 16
_NO_SESSION = bytes(SESSION_BYTES)


def require_name(name: str) -> None:
    """Raise ValueError if the name does not fit into a message."""
    allowed = f"1 to {messages.MAX_NAME_BYTES} bytes long"
    require(1 <= len(name.encode()) <= messages.MAX_NAME_BYTES, "name", name, allowed)


def require_minimum(least: int) -> None:
    """Raise ValueError if so few contributors cannot be the smallest sum: one would be one client's counts."""
    most = encoding.MAX_CONTRIBUTORS
    require(2 <= least <= most, "min_contributors", least, f"from 2 to {most:,}")


class KeyHolder:
    """Holds a secret key that decrypts one sum, once, and only a sum of enough contributors."""

    _LAYOUT = struct.Struct(f">4s{SESSION_BYTES}s{_KEY_ID_BYTES}sI")
    _MAGIC = b"FWSK"

    def __init__(self, name: str, session: bytes, key_id: bytes, min_contributors: int, secret: bytes) -> None:
        self.name = name
        self.session = session
        self.key_id = key_id
        self.min_contributors = min_contributors
        self._secret: bytes | None = secret

    @classmethod
    def generate(cls, name: str, session: bytes, min_contributors: int) -> tuple[Self, messages.PublicKey]:
        """Return a new key pair: the holder of the secret key, and the public key to send."""
        secret, public = SecretKey.generate()
        key_id = secrets.token_bytes(_KEY_ID_BYTES)
        holder = cls(name, session, key_id, min_contributors, secret)
        return holder, messages.PublicKey(session, name, key_id, min_contributors, public)

    def decrypt(self, request: messages.DecryptRequest) -> messages.Decrypted | messages.Unreadable:
        """Decrypt the totals of a sum. The number of its contributors is read from the sum itself, not trusted.

        The key is used once, whether the sum is valid or not: a second answer could be subtracted from the first.
        """
        if (request.session, request.key_id) != (self.session, self.key_id):
            raise ProtocolError("the sum is under another key")
        if request.contributors < self.min_contributors:
            raise ProtocolError(
                f"a sum of {request.contributors} contributors is not decrypted: "
                f"it must have at least {self.min_contributors}"
            )
        if self._secret is None:
            raise ProtocolError("this key has been used already")
        key, self._secret = SecretKey(self._secret), None
        try:
            totals = _totals(key, request)
        except ProtocolError:
            return messages.Unreadable(self.session, self.name, self.key_id)
        return messages.Decrypted(self.session, self.name, self.key_id, request.contributors, totals)

    def secret_bytes(self) -> bytes:
        """Return the key holder as bytes, for its own client to keep between two requests. Never send this."""
        if self._secret is None:
            raise ProtocolError("this key has been used already: there is nothing left to keep")
        return self._LAYOUT.pack(self._MAGIC, self.session, self.key_id, self.min_contributors) + self._secret

    @classmethod
    def from_secret_bytes(cls, name: str, data: bytes) -> Self:
        """Return the key holder from its `secret_bytes`."""
        if len(data) <= cls._LAYOUT.size or not data.startswith(cls._MAGIC):
            raise ProtocolError("these bytes are not a key holder")
        _, session, key_id, min_contributors = cls._LAYOUT.unpack_from(data)
        return cls(name, session, key_id, min_contributors, data[cls._LAYOUT.size :])


def _totals(key: SecretKey, request: messages.DecryptRequest) -> tuple[int, ...]:
    if request.classes < 1 or len(request.ciphertexts) != encoding.ciphertexts_needed(request.classes):
        raise ProtocolError(f"{len(request.ciphertexts)} ciphertexts do not carry {request.classes} classes")
    if request.contributors > encoding.MAX_CONTRIBUTORS:
        raise ProtocolError(f"a sum of {request.contributors:,} contributors may have wrapped")
    pairs = zip(request.ciphertexts, encoding.slots_used(request.classes), strict=True)
    sums = [key.decrypt(data, slots) for data, slots in pairs]
    return tuple(encoding.from_slots(sums, request.contributors).tolist())


class Client:
    """One client: it contributes its counts, and holds a key if it is asked to.

    `min_contributors` is its own rule: as a key holder it decrypts no smaller sum, whatever the server asks for.
    `key_holder` is None unless a key is waiting for its sum. If the client object does not outlive a
    request, keep `key_holder.secret_bytes()` after each answer and pass the key holder to the next object.
    """

    def __init__(
        self,
        name: str,
        counts: ArrayLike,
        *,
        min_contributors: int = MIN_CONTRIBUTORS,
        key_holder: KeyHolder | None = None,
    ) -> None:
        require_name(name)
        require_minimum(min_contributors)
        self.key_holder = key_holder
        self._name, self._min_contributors = name, min_contributors
        self._counts = encoding.checked_counts(counts)

    def answer(self, request: bytes) -> bytes:
        """Reply to a request. A request that cannot or must not be served is declined, with the reason."""
        session = _NO_SESSION
        try:
            message = Message.from_bytes(request, messages.size_limit(len(self._counts)))
            session = message.session
            return self._reply(message).to_bytes()
        except ProtocolError as error:
            return messages.Declined(session, self._name, str(error)).to_bytes()

    def contribute(self, request: messages.CountRequest) -> messages.Contribution:
        """Return the counts, encrypted under the key of the request."""
        if request.classes != len(self._counts):
            raise ProtocolError(f"{request.classes} classes are requested, {len(self._counts)} are counted")
        context = PublicContext(request.context)
        ciphertexts = tuple(context.encrypt(slots) for slots in encoding.to_slots(self._counts))
        return messages.Contribution(request.session, self._name, request.key_id, ciphertexts)

    def _reply(self, message: Message) -> messages.Reply:
        match message:
            case messages.KeyRequest():
                least = self._min_contributors
                self.key_holder, public = KeyHolder.generate(self._name, message.session, least)
                return public
            case messages.CountRequest():
                return self.contribute(message)
            case messages.DecryptRequest():
                return self._decrypt(message)
        raise ProtocolError(f"a client does not answer {type(message).__name__}")

    def _decrypt(self, request: messages.DecryptRequest) -> messages.Reply:
        if self.key_holder is None:
            raise ProtocolError("this client holds no key")
        reply = self.key_holder.decrypt(request)
        self.key_holder = None
        return reply
