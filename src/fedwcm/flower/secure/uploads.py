"""Uploads that stay with the clients: the server asks for sums, and each is made by secure aggregation."""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedwcm.core.types import Fault, Floats, Ints, LeftOut, State
from fedwcm.engine.uploads import UploadsLostError, find_upload
from fedwcm.experiment.files import write_json
from fedwcm.flower.app.options import HIDING
from fedwcm.flower.records import RequestId
from fedwcm.flower.secure.protocol import SecureSum, SecureSumError

LOG = logging.getLogger("flwr.fedwcm")

NAME = "secure-sums.json"


class SumLedger:
    """The sums of each round, in their order, each as a digest of its clients and their weights.

    Args:
        folder: where they are kept; None if the run cannot be continued, so that no round is repeated.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / NAME
        self._sums: dict[str, list[str]] = {}
        self._entered: Counter[str] = Counter()
        self.failures: list[str] = []
        """Why there was no sum, round after round, since the last one."""
        if self._path is not None and self._path.exists():
            self._sums = json.loads(self._path.read_text(encoding="utf-8"))

    def enter(self, request: RequestId, key: str, clients: list[int], weights: Floats) -> None:
        """Note a sum before it is known; raises a SecureSumError if the round had another one in its place."""
        name = f"{request.round}/{request.task}/{key}"
        made_of = json.dumps([clients, (weights.round(9) + 0.0).tolist()])  # + 0.0: no minus before a zero
        digest = hashlib.sha256(made_of.encode()).hexdigest()
        kept, place = self._sums.setdefault(name, []), self._entered[name]
        self._entered[name] += 1
        if place < len(kept):
            if kept[place] != digest:
                raise SecureSumError(
                    f"round {request.round} is repeated, and this sum had other clients or weights before"
                )
            return
        kept.append(digest)
        if self._path is not None:
            write_json(self._path, self._sums)


LEAST_HIDDEN = 0.05
"""Share of the squared weights of every combination of sums that must be with other clients than the few."""
STARTS = 10
"""Clients from which groups are grown that a combination of sums may consist of."""


@dataclass(frozen=True, eq=False)
class Collected:
    """Masked uploads of which some are missing: the others can still be summed, with the same weights."""

    key: str
    weights: Floats
    clients: list[int]
    masked: SecureSum

    def total(
        self, key: str, weights: Floats, clients: list[int], unmask: Callable[[SecureSum], Floats]
    ) -> Floats | None:
        """Return these sums over these clients; None if other weights were collected."""
        if key != self.key or set(clients) != self.masked.contributors:
            return None
        kept, tops, places = directions(self.weights[:, np.isin(self.clients, clients)])
        if kept.shape != weights.shape or not np.allclose(kept, weights, rtol=1e-9, atol=0):
            return None
        total = unmask(self.masked)
        return np.stack([total[place] / tops[place] for place in map(list(places).index, range(len(kept)))])


@dataclass(eq=False)
class SecureUploads:
    """The uploads of a phase, each on its own node.

    Args:
        start: begins a run of the protocol over these clients.
        asked: the request that the uploads answer; its client does not matter.
        like: an example of an upload.
        ids: the clients, ascending.
        needed: clients that a round needs to change the model.
        ledger: the sums of the run so far.
        hiding: clients that no combination of sums may consist of, and that a round must have beyond its sums.
        before: what was collected before some clients were lost.
    """

    start: Callable[[list[int]], SecureSum]
    asked: RequestId
    like: State
    ids: Ints
    needed: int
    ledger: SumLedger
    hiding: int = HIDING
    before: Collected | None = None
    bytes: int = field(default=0, init=False)
    _revealed: bool = field(default=False, init=False)
    _weights: dict[str, list[Floats]] = field(default_factory=dict, init=False)
    """The weights of the sums so far, by key."""

    def sum(self, key: str, weights: Floats) -> Tensor:
        like = find_upload(self.like, key)[0]
        distinct, tops, places = directions(np.atleast_2d(weights))
        total = self._total(key, distinct)
        self._revealed = True
        sums = tops[:, None] * total[places]
        return torch.as_tensor(
            sums.reshape(*weights.shape[:-1], *like.shape), dtype=like.dtype, device=like.device
        )

    def norms(self, key: str) -> Floats:
        """Return zeros: clients scale their increments themselves, before they mask them."""
        return np.zeros(len(self.ids))

    def rows(self, key: str) -> Tensor:
        raise ValueError("the uploads of single clients are not known under secure aggregation")

    def _total(self, key: str, weights: Floats) -> Floats:
        """Return the sums with these weights, one row each."""
        clients, enough = self.ids.tolist(), len(weights) + self.hiding
        if len(clients) < max(self.needed, enough):
            needed = _describe_needed(len(weights), max(self.needed, enough))
            raise self._all_lost(f"{len(clients)} clients are too few: {needed}")
        known = self._weights.setdefault(key, [])
        known.append(weights)
        if group := shown_alone(np.vstack(known), self.hiding):
            shown = " and ".join(str(clients[place]) for place in group)
            raise self._all_lost(
                f"{len(weights)} sums could be combined to the uploads of clients {shown} alone{CURE}"
            )

        def unmask(masked: SecureSum) -> Floats:
            self.ledger.enter(self.asked, key, clients, weights)
            return masked.unmask()

        try:
            before = self.before.total(key, weights, clients, unmask) if self.before else None
            total = self._collect(key, weights, clients, unmask) if before is None else before
            self.ledger.failures.clear()
            return total
        except SecureSumError as error:
            raise self._all_lost(str(error)) from None

    def _collect(
        self, key: str, weights: Floats, clients: list[int], unmask: Callable[[SecureSum], Floats]
    ) -> Floats:
        facts = {"run_id": self.asked.run_id, "round": self.asked.round, "task": self.asked.task, "key": key}
        questions = {
            client: {**facts, "weights": column.tolist()}
            for client, column in zip(clients, weights.T, strict=True)
        }
        masked, size = self.start(clients), self.like[key][0].numel()
        masked.collect(questions, (len(weights), size))
        self.bytes += len(masked.contributors) * 8 * (1 + len(weights) * size)
        lost = {client: masked.lost[client] for client in clients if client not in masked.contributors}
        if not lost:
            return unmask(masked)
        if self._revealed:  # the same sum without these clients would reveal what they had sent
            raise self._all_lost(f"clients {sorted(lost)} were lost between two sums")
        raise UploadsLostError(lost, self._without(lost, Collected(key, weights, clients, masked)))

    def _without(self, lost: dict[int, LeftOut], before: Collected | None) -> "SecureUploads":
        return replace(self, ids=self.ids[~np.isin(self.ids, list(lost))], before=before)

    def _all_lost(self, reason: str) -> UploadsLostError:
        self.ledger.failures.append(reason)
        LOG.warning("round %d: no sum by secure aggregation: %s", self.asked.round, reason)
        why = LeftOut(Fault.LOST, f"no sum by secure aggregation: {reason}")
        lost = dict.fromkeys(self.ids.tolist(), why)
        return UploadsLostError(lost, self._without(lost, None))


CURE = "; with local.steps, or fedwcm-x, all have paths of one length, and one sum suffices"


def _describe_needed(sums: int, clients: int) -> str:
    """Return how many clients sums need, and what makes them fewer."""
    if sums == 1:
        return f"a sum needs {clients} that hide each other"
    return f"{sums} sums need {clients} that hide each other{CURE}"


def shown_alone(rows: Floats, most: int = HIDING) -> tuple[int, ...] | None:
    """Return so many clients whose uploads some combination of sums with these weights is made of, or None.

    A combination is a vector in the span of the rows. Of all unit vectors there, the one with most of itself at
    given places has as much there as the largest eigenvalue of the span's projection onto them. From each of the
    clients with most of themselves in the span, the one that adds most joins the group, until it is large enough:
    of one sum, and of two clients, no group shows more.
    """
    _, sizes, basis = np.linalg.svd(rows, full_matrices=False)
    columns = basis[sizes > sizes[0] * 1e-9].T
    own = (columns**2).sum(axis=1)
    order = np.argsort(-own, kind="stable")
    if own[order[:most]].sum() <= 1 - LEAST_HIDDEN:  # no eigenvalue is above the trace
        return None
    squares = columns[:, :, None] * columns[:, None, :]
    for first in order[:STARTS]:
        group = [int(first)]
        while len(group) < min(most, len(own)):
            shown = np.linalg.eigvalsh(squares[group].sum(axis=0) + squares)[:, -1]
            shown[group] = 0.0
            group.append(int(shown.argmax()))
        if shown[group[-1]] > 1 - LEAST_HIDDEN:
            return tuple(sorted(group))
    return None


def directions(rows: Floats) -> tuple[Floats, Floats, Ints]:
    """Return the distinct directions of rows, with a largest entry of 1, and each row's scale and direction."""
    tops = rows[np.arange(len(rows)), np.abs(rows).argmax(axis=1)]
    tops = np.where(tops == 0, 1.0, tops)
    distinct, places = np.unique((rows / tops[:, None]).round(12), axis=0, return_inverse=True)
    return distinct, tops, places.reshape(-1)
