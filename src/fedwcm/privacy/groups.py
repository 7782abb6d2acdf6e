"""The server's state for one key: who contributes under it, and the encrypted sum so far."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedwcm.privacy.bfv import PublicContext
from fedwcm.privacy.encoding import MAX_CONTRIBUTORS, MAX_COUNT, Ints, slots_used
from fedwcm.privacy.messages import Contribution, CountRequest, Decrypted, DecryptRequest, PublicKey, Unreadable
from fedwcm.privacy.wire import ProtocolError

TotalsCheck = Callable[[Sequence[str], Ints], None]
"""Gets the contributors and their decrypted totals; raises a ProtocolError if the totals cannot be true."""


@dataclass
class Key:
    """A public key and the sum under it, one ciphertext per 819 classes."""

    public: PublicKey
    context: PublicContext
    sums: list[Any]


@dataclass(eq=False)
class Group:
    """Clients that share a key holder. If its key is lost, the group is replaced by a new one."""

    waiting: list[str]
    classes: int
    min_contributors: int
    contributors: list[str] = field(default_factory=list)
    key: Key | None = None
    confirmations: int = 1
    """Key holders that must decrypt the same totals."""
    claims: dict[str, Decrypted] = field(default_factory=dict)
    """What key holders say of the sum of the clients in `claimed`."""
    claimed: tuple[str, ...] = ()
    decrypted: Decrypted | None = None
    unreadable: int = 0
    """Key holders that could not read the sum of these contributors."""
    disbelieved: int = 0
    """Key holders whose totals for these contributors could not be true."""
    suspect: str | None = None
    """The client without whom the sum is tried, because with it nobody could read the sum."""
    suspects: tuple[str, ...] = ()
    """The clients that are to be left out next, one at a time."""

    @property
    def members(self) -> list[str]:
        """Clients that have contributed or still may."""
        return self.contributors + self.waiting

    @property
    def minimum(self) -> int:
        """The smallest sum to decrypt: the server's rule or the key holder's, whichever is stricter."""
        return max(self.min_contributors, self._current_key().public.min_contributors)

    @property
    def holder(self) -> str:
        """The key holder's name."""
        return self._current_key().public.sender

    def has_room_for(self, others: int) -> bool:
        """Return whether this many more contributors fit under the key."""
        return len(self.members) + others <= MAX_CONTRIBUTORS

    def take_key(self, public: PublicKey) -> None:
        """Use this key, if its holder would decrypt the sum of this group."""
        if self.key is not None:
            raise ProtocolError("a second key for the same group")
        size, least = len(self.members), public.min_contributors
        if least > size:
            raise ProtocolError(f"decrypts no sum of fewer than {least} contributors; the group has {size}")
        self.key = Key(public, PublicContext(public.context), [None for _ in slots_used(self.classes)])

    def count_request(self) -> CountRequest:
        """Return the request to the contributors, the same for all."""
        public = self._current_key().public
        return CountRequest(public.session, public.key_id, self.classes, public.context)

    def take_contribution(self, contribution: Contribution) -> None:
        """Add a contribution to the sum, whole or not at all."""
        key, sender = self._current_key(), contribution.sender
        if sender not in self.waiting:
            raise ProtocolError("has contributed already")
        if contribution.key_id != key.public.key_id:
            raise ProtocolError("contributes under another key")
        used = slots_used(self.classes)
        if len(contribution.ciphertexts) != len(used):
            raise ProtocolError(f"{len(contribution.ciphertexts)} ciphertexts where {len(used)} are expected")
        parts = zip(key.sums, contribution.ciphertexts, used, strict=True)
        key.sums = [key.context.add(total, data, slots) for total, data, slots in parts]
        self.waiting.remove(sender)
        self.contributors.append(sender)

    def decrypt_request(self) -> DecryptRequest:
        """Return the request to the key holder."""
        key = self._current_key()
        ciphertexts = tuple(total.serialize() for total in key.sums)
        return DecryptRequest(
            key.public.session, key.public.key_id, self.classes, len(self.contributors), ciphertexts
        )

    def take_decrypted(self, reply: Decrypted | Unreadable, check: TotalsCheck) -> None:
        """Keep what the key holder decrypted, if it can be the total of this group."""
        if reply.key_id != self._current_key().public.key_id:
            raise ProtocolError("answers for another key")
        if isinstance(reply, Unreadable):
            self.unreadable += 1
            return
        if (reply.contributors, len(reply.totals)) != (len(self.contributors), self.classes):
            raise ProtocolError(f"{len(reply.totals)} totals of {reply.contributors} contributors")
        try:
            if max(reply.totals) > reply.contributors * MAX_COUNT:
                raise ProtocolError(f"a total of {max(reply.totals):,} is more than was encrypted")
            check(self.contributors, np.array(reply.totals, dtype=np.int64))
        except ProtocolError:
            self.disbelieved += 1
            raise
        if set(self.claimed) != set(self.contributors):
            self.claims, self.claimed = {}, tuple(self.contributors)
        self.claims[reply.sender] = reply
        if sum(claim.totals == reply.totals for claim in self.claims.values()) >= self.confirmations:
            self.decrypted = reply

    def again(self) -> "Group":
        """Return the same contributors, without a key yet."""
        return replace(self, waiting=list(self.contributors), contributors=[], key=None)

    def of(self, clients: Sequence[str], suspect: str | None = None, suspects: tuple[str, ...] = ()) -> "Group":
        """Return a new group of these clients, without a key yet."""
        return Group(
            list(clients),
            self.classes,
            self.min_contributors,
            confirmations=self.confirmations,
            suspect=suspect,
            suspects=suspects,
        )

    def parts(self) -> list["Group"]:
        """Return the groups to try for one whose sum is bad: halves, or all but one client; none if too small.

        A sum that nobody could read tells nothing, so another one may differ from it by a single client.
        """
        half = len(self.contributors) // 2
        if half >= self.min_contributors and self.suspect is None:
            return [self.of(self.contributors[:half]), self.of(self.contributors[half:])]
        whole = [*self.contributors, *([] if self.suspect is None else [self.suspect])]
        suspects = self.suspects if self.suspect is not None else tuple(self.contributors)
        if not self.unreadable or not suspects or len(whole) <= self.min_contributors:
            return []
        first, *others = suspects
        return [self.of([name for name in whole if name != first], first, tuple(others))]

    def _current_key(self) -> Key:
        assert self.key is not None, "the group has no key yet"
        return self.key


@dataclass(frozen=True)
class Disclosed:
    """The contributors of all sums seen so far, in parts: the clients of a part are in the same sums.

    Whatever is added to and subtracted from these sums, all clients of a part get the same factor. So no result
    concerns fewer clients than the smallest part has.
    """

    parts: tuple[frozenset[str], ...] = ()

    def with_sum(self, contributors: Iterable[str]) -> "Disclosed":
        """Return the parts after a sum over these contributors as well."""
        added = frozenset(contributors)
        pieces = [piece for part in self.parts for piece in (part & added, part - added)]
        pieces.append(added.difference(*self.parts))
        return Disclosed(tuple(piece for piece in pieces if piece))

    @property
    def smallest(self) -> int:
        """The number of clients in the smallest part; 0 if no sum was seen."""
        return min(map(len, self.parts), default=0)
