"""The server's side: it assigns clients to key holders, adds ciphertexts, and collects the decrypted sums.

    ask one client per group for a key  →  ask the group for its counts under that key
    →  add the ciphertexts              →  ask the key holder to decrypt the sum

The server tolerates failures. A key holder that vanishes is replaced, and its group contributes again; a group
that has become too small joins another; a group whose sum cannot be decrypted, or cannot be true, is split until
the part with the bad ciphertext is too small to split, and that part is left out. A group whose sum, with those
decrypted before, would tell the counts of a few clients is left out as well. Clients that are in no decrypted sum
are listed.
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from fedwcm.core.checks import require
from fedwcm.privacy import messages
from fedwcm.privacy.client import MIN_CONTRIBUTORS, Client, require_minimum, require_name
from fedwcm.privacy.encoding import MAX_CONTRIBUTORS, Ints
from fedwcm.privacy.groups import Disclosed, Group, TotalsCheck
from fedwcm.privacy.wire import SESSION_BYTES, ProtocolError

Receive = Callable[[str, bytes], None]
"""Takes a client's name and its reply."""

Transport = Callable[[Mapping[str, bytes], Receive], None]
"""Delivers requests by client name and hands on each reply as it arrives, so that none has to be kept.

A client that does not reply counts as gone. The names must be those of the true senders: the transport
authenticates, the protocol does not.
"""

LONGEST_REASON = 300
"""Characters of a client's reason that are passed on: the client decides how long it is."""

_R = TypeVar("_R", bound=messages.Reply)


@dataclass(frozen=True)
class Refused:
    """A reply that the server did not use in the end, and why."""

    sender: str
    reason: str


@dataclass(frozen=True)
class ClassTotals:
    """The class totals of all contributors, and the cost of the session."""

    totals: Ints
    contributors: tuple[str, ...]
    left_out: tuple[str, ...]
    refused: tuple[Refused, ...]
    key_holders: tuple[str, ...]
    bytes_up: int
    bytes_down: int
    seconds: float


def _believe(contributors: Sequence[str], totals: Ints) -> None:
    """Accept all totals: nothing is known about the counts to check them against."""


class Server:
    """One session of the protocol. It never sees a secret key, nor counts other than sums.

    `check_totals` sees each decrypted sum and refuses one that cannot be true. With `confirmations = 2` two key
    holders must decrypt the same totals, each under its own key, so that one of them cannot make them up.
    `disclosed` are the sums of earlier sessions. `rng` assigns clients to groups and chooses the key holders;
    without one the choice is unpredictable.
    """

    def __init__(
        self,
        clients: Sequence[str],
        classes: int,
        *,
        key_holders: int = 1,
        min_contributors: int = MIN_CONTRIBUTORS,
        check_totals: TotalsCheck = _believe,
        confirmations: int = 1,
        disclosed: Disclosed | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        _check(clients, classes, key_holders, min_contributors)
        self._check_totals = check_totals
        self._clients = tuple(clients)
        order = (rng or np.random.default_rng()).permutation(len(clients))
        self._candidates = [clients[k] for k in order]
        shares = [self._candidates[first::key_holders] for first in range(key_holders)]
        self._groups = [Group(share, classes, min_contributors, confirmations=confirmations) for share in shares]
        self._min_contributors = min_contributors
        self.disclosed = disclosed or Disclosed()
        """The clients of all sums that were seen, in parts."""
        self.unconfirmed: list[str] = []
        """Key holders whose totals were believed, though nobody else decrypted the same sum."""
        self._limit = messages.size_limit(classes)
        self._session = secrets.token_bytes(SESSION_BYTES)
        self._seen: set[bytes] = set()
        self._sums: list[tuple[messages.Decrypted, Sequence[str]]] = []
        """The sums that are used, and the clients that are in each."""
        self._refused: list[Refused] = []
        self._bytes_up = self._bytes_down = 0

    def run(self, transport: Transport) -> ClassTotals:
        """Run the session; raises a ProtocolError if no sum could be decrypted."""
        started = time.perf_counter()
        while self._groups:
            self._find_key_holders(transport)
            self._collect(transport)
            if not self._join_small_groups():
                self._leave_out_telling_groups()
                self._decrypt(transport)
        if not self._sums:
            raise ProtocolError(f"no sum could be decrypted; {self._last_refusal()}")
        return self._result(time.perf_counter() - started)

    def _find_key_holders(self, transport: Transport) -> None:
        """Ask for keys until every group has one; a group without candidates is given up."""
        while keyless := [group for group in self._groups if group.key is None]:
            candidates: dict[str, Group] = {}
            for group in keyless:
                if (candidate := self._next_candidate(group)) is None:
                    self._groups.remove(group)
                    self._settle_for_less(group, "no client is left to hold a key for its group")
                else:
                    candidates[candidate] = group
            self._ask_for_keys(transport, candidates)

    def _next_candidate(self, group: Group) -> str | None:
        """Return the next client to ask for a key, each at most once; if possible one outside the group."""
        members = set(group.members)
        outsider = next((name for name in self._candidates if name not in members), None)
        chosen = outsider or next(iter(self._candidates), None)
        if chosen is not None:
            self._candidates.remove(chosen)
        return chosen

    def _ask_for_keys(self, transport: Transport, candidates: Mapping[str, Group]) -> None:
        def accept(sender: str, data: bytes) -> None:
            candidates[sender].take_key(self._read(messages.PublicKey, sender, data))

        self._exchange(transport, dict.fromkeys(candidates, messages.KeyRequest(self._session).to_bytes()), accept)

    def _collect(self, transport: Transport) -> None:
        """Ask all clients that have not contributed yet; those that do not reply are not asked again."""
        group_of = {name: group for group in self._groups for name in group.waiting}
        requests: dict[str, bytes] = {}
        for group in self._groups:
            requests |= dict.fromkeys(group.waiting, group.count_request().to_bytes())

        def accept(sender: str, data: bytes) -> None:
            self._take_contribution(group_of[sender], self._read(messages.Contribution, sender, data))

        self._exchange(transport, requests, accept)
        silent = {name for group in self._groups for name in group.waiting}
        self._candidates = [name for name in self._candidates if name not in silent]
        for group in self._groups:
            group.waiting.clear()

    def _take_contribution(self, group: Group, contribution: messages.Contribution) -> None:
        """Add a contribution, unless one of its ciphertexts was seen before."""
        digests = [hashlib.sha256(ciphertext).digest() for ciphertext in contribution.ciphertexts]
        if len(set(digests)) < len(digests) or not self._seen.isdisjoint(digests):
            raise ProtocolError("replays a ciphertext")
        group.take_contribution(contribution)
        self._seen.update(digests)

    def _join_small_groups(self) -> bool:
        """Move the contributors of groups that are too small to others; true if any client moved."""
        moved = False
        while small := next((group for group in self._groups if len(group.members) < group.minimum), None):
            self._groups.remove(small)
            roomy = [group for group in self._groups if group.has_room_for(len(small.members))]
            if roomy and small.members:
                min(roomy, key=lambda group: len(group.members)).waiting += small.members
                moved = True
            else:
                self._settle_for_less(small, f"its group of {len(small.members)} is too small to be decrypted")
        return moved

    def _leave_out_telling_groups(self) -> None:
        """Give up the groups whose sum, less sums that are known, would be that of too few clients.

        A sum that nobody believed was seen all the same. If it is repeated, and one of its clients has left, the
        difference is what that client has.
        """
        known, allowed = self.disclosed, list[Group]()
        for group in self._groups:
            after = known.with_sum(group.contributors)
            if after.smallest < self._min_contributors:
                few = f"fewer than {self._min_contributors} clients"
                reason = f"the sum of its group differs from sums decrypted before by {few}"
                self._settle_for_less(group, reason)
            else:
                known, allowed = after, [*allowed, group]
        self._groups = allowed

    def _decrypt(self, transport: Transport) -> None:
        group_of = {group.holder: group for group in self._groups}

        def accept(sender: str, data: bytes) -> None:
            reply = self._read(messages.Reply, sender, data)
            if not isinstance(reply, messages.Decrypted | messages.Unreadable):
                raise ProtocolError(f"{type(reply).__name__} where a decrypted sum is expected")
            if isinstance(reply, messages.Decrypted):
                self.disclosed = self.disclosed.with_sum(group_of[sender].contributors)
            group_of[sender].take_decrypted(reply, self._check_totals)

        requests = {holder: group.decrypt_request().to_bytes() for holder, group in group_of.items()}
        self._exchange(transport, requests, accept)
        groups, self._groups = self._groups, []
        for group in groups:
            if group.decrypted is None:
                self._groups += self._try_again(group)
            else:
                self._take(group, group.decrypted)

    def _take(self, group: Group, decrypted: messages.Decrypted) -> None:
        """Use a group's totals, and say who is to blame if it took several attempts."""
        self._sums.append((decrypted, group.contributors))
        wrong = "its totals are not those that two others decrypted"
        doubted = [name for name, claim in group.claims.items() if claim.totals != decrypted.totals]
        self._refused += [Refused(name, wrong) for name in doubted]
        if group.suspect is not None:
            self._refused.append(
                Refused(group.suspect, "with its contribution the sum of its group cannot be read")
            )

    def _settle_for_less(self, group: Group, reason: str) -> None:
        """Give a group up, unless one key holder has decrypted its sum and nobody has contradicted it."""
        if len(group.claims) == 1:
            ((holder, claim),) = group.claims.items()
            self.unconfirmed.append(holder)
            self._sums.append((claim, group.claimed))
        else:
            self._give_up(group, reason)

    def _try_again(self, group: Group) -> list[Group]:
        """Return the groups to try next for one whose sum was not decrypted, with other key holders.

        One key holder whose totals cannot be true, or who cannot read the sum, may be lying; after a second, the
        fault is in the sum.
        """
        if group.unreadable < 2 and group.disbelieved < 2:
            return [group.again()]
        self._candidates += [group.holder] if group.unreadable else []  # it has answered, and may do so again
        parts = group.parts()
        if not parts:
            what = "could not be read" if group.unreadable else "cannot be true"
            self._give_up(group, f"is one of {len(group.contributors)} whose sum {what}")
        return parts

    def _give_up(self, group: Group, reason: str) -> None:
        self._refused += [Refused(name, reason) for name in group.members]

    def _exchange(self, transport: Transport, requests: Mapping[str, bytes], accept: Receive) -> None:
        """Send requests and accept the replies one by one; a refused reply changes nothing else."""
        if not requests:
            return
        self._bytes_down += sum(map(len, requests.values()))

        def receive(sender: str, data: bytes) -> None:
            self._bytes_up += len(data)
            try:
                if sender not in requests:
                    raise ProtocolError("was not asked")
                accept(sender, data)
            except ProtocolError as error:
                self._refused.append(Refused(sender, str(error)))

        transport(requests, receive)

    def _read(self, kind: type[_R], sender: str, data: bytes) -> _R:
        reply = messages.Reply.from_bytes(data, self._limit)
        if isinstance(reply, messages.Declined):
            raise ProtocolError(f"declines: {reply.reason[:LONGEST_REASON]}")
        if not isinstance(reply, kind):
            raise ProtocolError(f"sends {type(reply).__name__} where {kind.__name__} is expected")
        if reply.sender != sender:
            raise ProtocolError(f"speaks for {reply.sender!r}")
        if reply.session != self._session:
            raise ProtocolError("belongs to another session")
        return reply

    def _result(self, seconds: float) -> ClassTotals:
        present = {name for _, contributors in self._sums for name in contributors}
        return ClassTotals(
            totals=np.array([decrypted.totals for decrypted, _ in self._sums], dtype=np.int64).sum(axis=0),
            contributors=tuple(name for name in self._clients if name in present),
            left_out=tuple(name for name in self._clients if name not in present),
            refused=tuple(self._refused),
            key_holders=tuple(decrypted.sender for decrypted, _ in self._sums),
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
        require_name(name)
    if len(set(clients)) != len(clients):
        raise ValueError(f"clients must have different names: {len(clients)} clients, {len(set(clients))} names")
    require(classes >= 1, "classes", classes, "at least 1")
    require(key_holders >= 1, "key_holders", key_holders, "at least 1")
    require_minimum(min_contributors)
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


def sum_counts(
    counts: ArrayLike | Mapping[str, ArrayLike],
    *,
    key_holders: int = 1,
    min_contributors: int = MIN_CONTRIBUTORS,
    rng: np.random.Generator | None = None,
) -> ClassTotals:
    """Return the exact class totals of these clients, as the server learns them under encryption.

    Args:
        counts: one row per client and one column per class, or a mapping from names to rows; without names the
            clients are "0", "1", ….
        key_holders: number of clients that hold a key; each decrypts the sum of its group.
        min_contributors: the smallest sum that is decrypted.
        rng: draws the key holders; unpredictable by default.
    """
    rows = _named_rows(counts)
    clients = {name: Client(name, row, min_contributors=min_contributors) for name, row in rows.items()}
    classes = len(next(iter(rows.values())))
    server = Server(tuple(rows), classes, key_holders=key_holders, min_contributors=min_contributors, rng=rng)
    return server.run(loopback(clients))


def loopback(clients: Mapping[str, Client]) -> Transport:
    """Return a transport to clients in this process, one after the other."""

    def deliver(requests: Mapping[str, bytes], receive: Receive) -> None:
        for name, request in requests.items():
            receive(name, clients[name].answer(request))

    return deliver


def _named_rows(counts: ArrayLike | Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    if isinstance(counts, Mapping):
        rows = {str(name): np.asarray(row) for name, row in counts.items()}
    else:
        table = np.asarray(counts)
        if table.ndim != 2:
            raise ValueError(f"counts must be a (clients × classes) array, not of shape {table.shape}")
        rows = {str(k): row for k, row in enumerate(table)}
    shapes = {row.shape for row in rows.values()}
    if len(shapes) != 1:
        raise ValueError(f"counts must have the same classes for every client, not shapes {sorted(shapes)}")
    return rows
