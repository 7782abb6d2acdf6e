"""The server's side: it deals clients to key holders, adds what it cannot read, and collects what they open.

    ask one client a group for a key   →  ask the group for its counts under that key
    →  add the ciphertexts             →  ask the key holder to open the sum

The server keeps going when others fail. A key holder that vanishes is replaced and its group contributes
anew; a group that has become too small joins another; a group whose sum does not open is split until the part
with the bad ciphertext is too small to be split, and that part is left out. Whoever ends in no opened sum is
named.
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from fedwcm.privacy.client import MIN_CONTRIBUTORS, checked_minimum, checked_name
from fedwcm.privacy.encoding import MAX_CONTRIBUTORS, Ints
from fedwcm.privacy.groups import Group
from fedwcm.privacy.messages import (
    Contribution,
    Declined,
    KeyRequest,
    Opened,
    PublicKey,
    Reply,
    Unreadable,
    size_limit,
)
from fedwcm.privacy.wire import SESSION_BYTES, ProtocolError

Transport = Callable[[Mapping[str, bytes]], Iterable[tuple[str, bytes]]]
"""Delivers requests by client name and yields (client name, reply) as they arrive.

Whoever does not reply has vanished. The names that it yields must be those of the true senders: the transport
authenticates, the protocol does not.
"""

_R = TypeVar("_R", bound=Reply)


@dataclass(frozen=True)
class Refused:
    """A reply that the server did not use, or not in the end."""

    sender: str
    reason: str


@dataclass(frozen=True)
class ClassTotals:
    """The class totals of all contributors, and what it took."""

    totals: Ints
    contributors: tuple[str, ...]
    left_out: tuple[str, ...]
    refused: tuple[Refused, ...]
    key_holders: tuple[str, ...]
    bytes_up: int
    bytes_down: int
    seconds: float


class Server:
    """One session of the protocol. It never sees a secret key, nor counts other than sums.

    `rng` deals the clients and chooses who holds a key; without one the choice is unpredictable.
    """

    def __init__(
        self,
        clients: Sequence[str],
        classes: int,
        *,
        key_holders: int = 1,
        min_contributors: int = MIN_CONTRIBUTORS,
        rng: np.random.Generator | None = None,
    ) -> None:
        _check(clients, classes, key_holders, min_contributors)
        self._clients = tuple(clients)
        order = (rng or np.random.default_rng()).permutation(len(clients))
        self._candidates = [clients[k] for k in order]
        shares = [self._candidates[first::key_holders] for first in range(key_holders)]
        self._groups = [Group(share, classes, min_contributors) for share in shares]
        self._limit = size_limit(classes)
        self._session = secrets.token_bytes(SESSION_BYTES)
        self._seen: set[bytes] = set()
        self._opened: list[Group] = []
        self._refused: list[Refused] = []
        self._bytes_up = self._bytes_down = 0

    def run(self, transport: Transport) -> ClassTotals:
        """Carry the session through. ProtocolError if no sum at all could be opened."""
        started = time.perf_counter()
        while self._groups:
            self._find_key_holders(transport)
            self._collect(transport)
            if not self._join_small_groups():
                self._open(transport)
        if not self._opened:
            raise ProtocolError(f"no sum could be opened; {self._last_refusal()}")
        return self._gathered(time.perf_counter() - started)

    def _find_key_holders(self, transport: Transport) -> None:
        """Ask for keys until every group has one; a group for which no client is left is given up."""
        while keyless := [group for group in self._groups if group.key is None]:
            asked: dict[str, Group] = {}
            for group in keyless:
                if (candidate := self._next_candidate(group)) is None:
                    self._groups.remove(group)
                    self._give_up(group, "no client is left to hold a key for its group")
                else:
                    asked[candidate] = group
            self._ask_for_keys(transport, asked)

    def _next_candidate(self, group: Group) -> str | None:
        """Who is asked next to hold a key, each client at most once; if possible somebody outside the group."""
        members = set(group.members)
        outsider = next((name for name in self._candidates if name not in members), None)
        chosen = outsider or next(iter(self._candidates), None)
        if chosen is not None:
            self._candidates.remove(chosen)
        return chosen

    def _ask_for_keys(self, transport: Transport, asked: Mapping[str, Group]) -> None:
        def accept(sender: str, data: bytes) -> None:
            asked[sender].take_key(self._read(PublicKey, sender, data))

        self._exchange(transport, dict.fromkeys(asked, KeyRequest(self._session).to_bytes()), accept)

    def _collect(self, transport: Transport) -> None:
        """Ask all who have not yet contributed; the silent are not asked again."""
        asked = {name: group for group in self._groups for name in group.waiting}
        requests: dict[str, bytes] = {}
        for group in self._groups:
            requests |= dict.fromkeys(group.waiting, group.count_request().to_bytes())

        def accept(sender: str, data: bytes) -> None:
            self._take_contribution(asked[sender], self._read(Contribution, sender, data))

        self._exchange(transport, requests, accept)
        silent = {name for group in self._groups for name in group.waiting}
        self._candidates = [name for name in self._candidates if name not in silent]
        for group in self._groups:
            group.waiting.clear()

    def _take_contribution(self, group: Group, contribution: Contribution) -> None:
        """Add a contribution none of whose ciphertexts was here before."""
        digests = [hashlib.sha256(ciphertext).digest() for ciphertext in contribution.ciphertexts]
        if len(set(digests)) < len(digests) or not self._seen.isdisjoint(digests):
            raise ProtocolError("replays a ciphertext")
        group.take_contribution(contribution)
        self._seen.update(digests)

    def _join_small_groups(self) -> bool:
        """Move the contributors of a group too small to be opened to another; true if anybody moved."""
        moved = False
        while small := next((group for group in self._groups if len(group.members) < group.minimum), None):
            self._groups.remove(small)
            roomy = [group for group in self._groups if group.has_room_for(len(small.members))]
            if roomy and small.members:
                min(roomy, key=lambda group: len(group.members)).waiting += small.members
                moved = True
            else:
                self._give_up(small, f"its group of {len(small.members)} is too small to be opened")
        return moved

    def _open(self, transport: Transport) -> None:
        asked = {group.holder: group for group in self._groups}

        def accept(sender: str, data: bytes) -> None:
            reply = self._read(Reply, sender, data)
            if not isinstance(reply, Opened | Unreadable):
                raise ProtocolError(f"{type(reply).__name__} where a sum should be opened")
            asked[sender].take_opening(reply)

        requests = {holder: group.open_request().to_bytes() for holder, group in asked.items()}
        self._exchange(transport, requests, accept)
        closed = [group for group in self._groups if group.opened is None]
        self._opened += [group for group in self._groups if group.opened is not None]
        self._groups = [part for group in closed for part in self._try_again(group)]

    def _try_again(self, group: Group) -> list[Group]:
        """A group whose sum stayed closed, ready for other key holders."""
        if not group.unreadable:
            return [group.anew(group.contributors)]
        half = len(group.contributors) // 2
        if half < group.min_contributors:
            self._give_up(group, f"is one of {len(group.contributors)} whose sum could not be read")
            return []
        return [group.anew(group.contributors[:half]), group.anew(group.contributors[half:])]

    def _give_up(self, group: Group, reason: str) -> None:
        self._refused += [Refused(name, reason) for name in group.members]

    def _exchange(
        self, transport: Transport, requests: Mapping[str, bytes], accept: Callable[[str, bytes], None]
    ) -> None:
        """Send requests and accept the replies one by one; one that is refused changes nothing else."""
        if not requests:
            return
        self._bytes_down += sum(map(len, requests.values()))
        for sender, data in transport(requests):
            self._bytes_up += len(data)
            try:
                if sender not in requests:
                    raise ProtocolError("was not asked")
                accept(sender, data)
            except ProtocolError as error:
                self._refused.append(Refused(sender, str(error)))

    def _read(self, kind: type[_R], sender: str, data: bytes) -> _R:
        reply = Reply.from_bytes(data, self._limit)
        if isinstance(reply, Declined):
            raise ProtocolError(f"declines: {reply.reason}")
        if not isinstance(reply, kind):
            raise ProtocolError(f"sends {type(reply).__name__} where {kind.__name__} is expected")
        if reply.sender != sender:
            raise ProtocolError(f"speaks for {reply.sender!r}")
        if reply.session != self._session:
            raise ProtocolError("is of another session")
        return reply

    def _gathered(self, seconds: float) -> ClassTotals:
        openings = [group.opened.totals for group in self._opened if group.opened is not None]
        present = {name for group in self._opened for name in group.contributors}
        return ClassTotals(
            totals=np.array(openings, dtype=np.int64).sum(axis=0),
            contributors=tuple(name for name in self._clients if name in present),
            left_out=tuple(name for name in self._clients if name not in present),
            refused=tuple(self._refused),
            key_holders=tuple(group.holder for group in self._opened),
            bytes_up=self._bytes_up,
            bytes_down=self._bytes_down,
            seconds=seconds,
        )

    def _last_refusal(self) -> str:
        if not self._refused:
            return "too few clients answered"
        last = self._refused[-1]
        return f"the last refusal, of {len(self._refused)}: client {last.sender!r}: {last.reason}"


def _check(clients: Sequence[str], classes: int, key_holders: int, min_contributors: int) -> None:
    for name in clients:
        checked_name(name)
    if len(set(clients)) != len(clients):
        raise ValueError(f"clients must have different names: {len(clients)} clients, {len(set(clients))} names")
    if classes < 1:
        raise ValueError(f"classes must be at least 1, not {classes}")
    if key_holders < 1:
        raise ValueError(f"key_holders must be at least 1, not {key_holders}")
    checked_minimum(min_contributors)
    needed = key_holders * min_contributors
    if len(clients) < needed:
        raise ValueError(
            f"key_holders={key_holders} needs at least {needed} clients, not {len(clients)}: "
            f"a sum of fewer than min_contributors={min_contributors} would tell too much about each of them"
        )
    if len(clients) > key_holders * MAX_CONTRIBUTORS:
        raise ValueError(
            f"key_holders must be at least {-(-len(clients) // MAX_CONTRIBUTORS)} for {len(clients):,} clients, "
            f"not {key_holders}: a sum of more than {MAX_CONTRIBUTORS:,} contributors could wrap"
        )
