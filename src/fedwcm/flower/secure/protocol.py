"""The server's part in secure aggregation: it leads the clients' mods through SecAgg+ and learns a sum.

The protocol is Flower's (Bell et al., 2020), with Flower's primitives: clients make keys, share the secrets behind
their masks with their neighbours, send masked vectors, and reveal what removes the masks from the sum. A client
that drops out after it has shared its secrets does no harm: its neighbours reveal its key instead.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from flwr.app import ConfigRecord, RecordDict
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

from fedwcm.core.types import Floats, Ints, LeftOut
from fedwcm.flower.secure.client import SUM
from fedwcm.flower.server.answers import unpack
from fedwcm.flower.untrusted import UnusableError, read_list, require_names, short_repr

Facts = dict[str, Any]
Ask = Callable[[Mapping[int, RecordDict], Callable[[int, RecordDict], None]], dict[int, LeftOut]]
"""Sends clients their messages of a stage and hands on the answers; returns the clients without one, and why."""

MODULUS = 2**32
"""Masks and masked numbers are below this."""
CURVE = ec.SECP384R1
"""The curve of the keys that Flower's mods make."""
MOST_SHARES = 21
"""Most clients that share one client's secrets, as Flower's arithmetic is slow; with fewer clients, all do."""
LONGEST_SHARE, LONGEST_CIPHERTEXT = 2**10, 2**12
"""Most bytes of a share, and of a key or an encrypted share: several times what Flower's mods send.

The time and memory that it takes to put a secret together grow with the length of its shares."""


class SecureSumError(RuntimeError):
    """Too few clients are left, or what they revealed does not fit: the sum cannot be recovered."""


class SecureSum:
    """One run of the protocol over these clients.

    Args:
        ask: how to reach them.
        clients: their numbers.
        limit: largest entry of a vector, by magnitude.
    """

    def __init__(self, ask: Ask, clients: Sequence[int], limit: float) -> None:
        self._ask, self._limit = ask, limit
        self._shares = min(len(clients), MOST_SHARES)
        self._threshold = max(2, -(-2 * self._shares // 3))
        self._levels = MODULUS >> len(clients).bit_length()  # so that the sum of all stays below the modulus
        self._neighbours = _place_on_ring(clients, self._shares // 2)
        self._keys: dict[int, list[bytes]] = {}
        self._sharing: set[int] = set()
        self._masked: list[Ints] = []
        self.contributors: set[int] = set()
        self.lost: dict[int, LeftOut] = {}

    def collect(self, questions: Mapping[int, Facts], shape: tuple[int, ...]) -> None:
        """Collect masked vectors of this shape, adding them up as they arrive."""
        self._make_keys()
        shares = self._share_keys()
        self._masked = [np.zeros(1, dtype=np.int64), np.zeros(shape, dtype=np.int64)]

        def read(client: int, facts: Facts) -> None:
            parts = [_as_bytes(part) for part in read_list(facts, Key.MASKED_PARAMETERS)]
            if len(parts) != len(self._masked):
                raise UnusableError(f"its masked upload has {len(parts)} parts, not {len(self._masked)}")
            arrays = [
                unpack(Key.MASKED_PARAMETERS, part, total.dtype, total.shape)
                for part, total in zip(parts, self._masked, strict=True)
            ]
            if any(((array < 0) | (array >= MODULUS)).any() for array in arrays):
                raise UnusableError("its masked upload has numbers beyond the modulus")
            for total, array in zip(self._masked, arrays, strict=True):
                total += array
                total &= MODULUS - 1

        facts = {
            client: {Key.CIPHERTEXT_LIST: list(box.values()), Key.SOURCE_LIST: list(box)}
            for client, box in shares.items()
        }
        questions_with_limit = {
            client: ConfigRecord({**questions[client], "limit": self._limit}) for client in facts
        }
        self.contributors = self._stage(Stage.COLLECT_MASKED_VECTORS, facts, read, questions_with_limit)

    def unmask(self) -> Floats:
        """Return the sum of the contributors' vectors; can be called once."""
        self._require_neighbours(self.contributors)
        shares = self._revealed_shares()
        for owner in sorted(self._sharing):
            if len(shares[owner]) < self._threshold:
                there = f"{len(shares[owner])} of {self._threshold}"
                raise SecureSumError(f"only {there} needed shares of the secret of client {owner} were revealed")
            try:
                self._remove_masks(owner, combine_shares(shares[owner][: self._threshold]))
            except Exception as error:  # whatever wrong shares make Flower's arithmetic raise
                raise SecureSumError(f"the secret of client {owner} cannot be put together") from error
        counted, total = (array & (MODULUS - 1) for array in self._masked)
        clients = len(self.contributors)
        if int(counted[0]) != clients * self._levels:
            raise SecureSumError("the masks do not cancel")
        if int(total.max(initial=0)) > clients * self._levels:
            raise SecureSumError(f"the sum is beyond what {clients} clients can add")
        return total.astype(np.float64) * (2 * self._limit / self._levels) - clients * self._limit

    def _remove_masks(self, owner: int, secret: bytes) -> None:
        """Remove a contributor's own mask, or the masks that contributors have for a client that is gone."""
        shapes = [total.shape for total in self._masked]
        if owner in self.contributors:
            self._add(pseudo_rand_gen(secret, MODULUS, shapes), -1)
            return
        for neighbour in sorted(self._neighbours[owner] & self.contributors):
            key: Any = load_pem_public_key(self._keys[neighbour][0])
            seed = generate_shared_key(load_pem_private_key(secret, None), key)  # type: ignore[arg-type]
            self._add(pseudo_rand_gen(seed, MODULUS, shapes), 1 if owner > neighbour else -1)

    def _make_keys(self) -> None:
        facts = {
            Key.SAMPLE_NUMBER: len(self._neighbours),
            Key.SHARE_NUMBER: self._shares,
            Key.THRESHOLD: self._threshold,
            Key.CLIPPING_RANGE: float(self._limit),
            Key.TARGET_RANGE: self._levels,
            Key.MOD_RANGE: MODULUS,
            Key.MAX_WEIGHT: 1.0,
        }

        known: set[ec.EllipticCurvePublicNumbers] = set()

        def read(client: int, reply: Facts) -> None:
            require_names("keys", reply, {Key.PUBLIC_KEY_1: 0, Key.PUBLIC_KEY_2: 0})
            keys = [_as_bytes(reply[name], LONGEST_CIPHERTEXT) for name in (Key.PUBLIC_KEY_1, Key.PUBLIC_KEY_2)]
            points = {_read_point(key) for key in keys}
            if len(points) < len(keys) or not points.isdisjoint(known):
                raise UnusableError("its public key is already in use: all keys must differ")
            known.update(points)
            self._keys[client] = keys

        self._require_neighbours(self._stage(Stage.SETUP, dict.fromkeys(self._neighbours, facts), read))

    def _share_keys(self) -> dict[int, dict[int, bytes]]:
        """Let clients share their secrets; return, for each, the sealed letters that others wrote to it."""
        present = set(self._keys)
        facts = {
            c: {str(n): self._keys[n] for n in sorted(self._neighbours[c] & present)} for c in sorted(present)
        }
        sent: dict[int, dict[int, bytes]] = {}

        def read(client: int, reply: Facts) -> None:
            to, shares = read_list(reply, Key.DESTINATION_LIST), read_list(reply, Key.CIPHERTEXT_LIST)
            expected = self._neighbours[client] & present - {client}
            if len(to) != len(shares) or set(to) != expected or len(set(to)) != len(to):
                raise UnusableError(
                    f"it shares its secrets with {short_repr(to)}, not with {short_repr(sorted(expected))}"
                )
            encrypted = [_as_bytes(share, LONGEST_CIPHERTEXT) for share in shares]
            sent[client] = dict(zip(to, encrypted, strict=True))  # type: ignore[arg-type]

        self._sharing = self._stage(Stage.SHARE_KEYS, facts, read)
        self._require_neighbours(self._sharing)
        return {
            client: {source: sent[source][client] for source in sorted(sent) if client in sent[source]}
            for client in sorted(self._sharing)
        }

    def _revealed_shares(self) -> dict[int, list[bytes]]:
        """Ask the contributors for their shares: of each other's masks, and of the keys of those that are gone."""
        gone = self._sharing - self.contributors
        facts: dict[int, Facts] = {}
        for client in sorted(self.contributors):
            near = self._neighbours[client]
            present, missing = sorted(near & self.contributors), sorted(near & gone)
            facts[client] = {Key.ACTIVE_NODE_ID_LIST: present, Key.DEAD_NODE_ID_LIST: missing}
        shares: dict[int, list[bytes]] = {owner: [] for owner in self._sharing}

        def read(client: int, reply: Facts) -> None:
            owners = [*facts[client][Key.ACTIVE_NODE_ID_LIST], *facts[client][Key.DEAD_NODE_ID_LIST]]
            revealed = [_as_bytes(share, LONGEST_SHARE) for share in read_list(reply, Key.SHARE_LIST)]
            if read_list(reply, Key.NODE_ID_LIST) != owners or len(revealed) != len(owners):
                raise UnusableError("it does not reveal the shares that it was asked for")
            for owner, share in zip(owners, revealed, strict=True):
                shares[owner].append(share)

        self._stage(Stage.UNMASK, facts, read)
        return shares

    def _add(self, masks: Sequence[Ints], sign: int) -> None:
        for total, mask in zip(self._masked, masks, strict=True):
            total += sign * mask

    def _stage(
        self,
        stage: str,
        facts: Mapping[int, Facts],
        read: Callable[[int, Facts], None],
        questions: Mapping[int, ConfigRecord] | None = None,
    ) -> set[int]:
        """Send each client its facts; return the clients whose answers could be read."""
        more = {client: {SUM: record} for client, record in (questions or {}).items()}
        contents = {
            client: RecordDict(
                {RECORD_KEY_CONFIGS: ConfigRecord({Key.STAGE: stage, **own}), **more.get(client, {})}
            )
            for client, own in facts.items()
        }
        answered: set[int] = set()

        def receive(client: int, content: RecordDict) -> None:
            if RECORD_KEY_CONFIGS not in content.config_records:
                raise UnusableError(f"its answer to the stage {stage!r} cannot be read")
            read(client, dict(content.config_records[RECORD_KEY_CONFIGS]))
            answered.add(client)

        self.lost |= self._ask(contents, receive)
        return answered

    def _require_neighbours(self, present: set[int]) -> None:
        for client in present:
            near = len(self._neighbours[client] & present)
            if near < self._threshold:
                raise SecureSumError(
                    f"only {near} of {self._threshold} needed neighbours of client {client} are left"
                )
        if not present:
            raise SecureSumError("no client is left")


def _place_on_ring(clients: Sequence[int], reach: int) -> dict[int, set[int]]:
    """Return each client's neighbours, itself among them: those next to it in an order that nobody foresees."""
    order = list(clients)
    random.SystemRandom().shuffle(order)
    return {
        client: {order[(place + step) % len(order)] for step in range(-reach, reach + 1)}
        for place, client in enumerate(order)
    }


def _as_bytes(value: object, most: int | None = None) -> bytes:
    if not isinstance(value, bytes):
        raise UnusableError(f"expected bytes, got {short_repr(value)}")
    if most is not None and len(value) > most:
        raise UnusableError(f"expected at most {most:,} bytes, got {len(value):,}")
    return value


def _read_point(pem: bytes) -> ec.EllipticCurvePublicNumbers:
    """Return a public key's place on the curve of Flower's mods; on another curve, its neighbours would fail."""
    try:
        key = load_pem_public_key(pem)
    except Exception:  # whatever the bytes make the parser do, they are the client's fault
        raise UnusableError("its public key cannot be read") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, CURVE):
        kind = key.curve.name if isinstance(key, ec.EllipticCurvePublicKey) else type(key).__name__
        raise UnusableError(f"its public key is {short_repr(kind)}: it must be on {CURVE.name}")
    return key.public_numbers()
