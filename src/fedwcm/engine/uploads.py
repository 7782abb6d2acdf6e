"""What a phase of a round brings the server: numbers, and sums of uploads, weighted or robust against faults."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedwcm.core.method import Method, TwoPhase
from fedwcm.core.types import Clients, Floats, Ints, LeftOut, Report, State, Uploads, Vec, bytes_of
from fedwcm.engine.client import ClientUpdates
from fedwcm.engine.options import Aggregation

T = TypeVar("T")

ROUNDING = 1e-9
"""Added to a product of a share and a number of clients, so that 0.29 of 100 is 29."""
WIDEST_TRIM = 0.4995
"""Share of the weight that is dropped at either end, at most: what is left around the middle is the median."""


class ClientUploads(Uploads, Protocol):
    """The uploads of a phase, in the order of the clients' ids, wherever they are held."""

    @property
    def bytes(self) -> int:
        """What the clients have sent."""
        ...

    def norms(self, key: str) -> Floats:
        """Return the norm of each client's upload."""
        ...


class UploadsLostError(RuntimeError):
    """Clients that had answered are gone before their uploads were summed: the sums of the others remain.

    Args:
        clients: the clients that are gone, with the reason.
        remaining: the uploads of the others.
    """

    def __init__(self, clients: Mapping[int, LeftOut], remaining: ClientUploads) -> None:
        super().__init__(f"the uploads of clients {sorted(clients)} are lost")
        self.clients, self.remaining = clients, remaining


def find_upload(uploads: Mapping[str, T], key: str) -> T:
    """Return what is known of an upload; the error for an unknown one lists the known ones."""
    if key not in uploads:
        known = ", ".join(map(repr, uploads))
        raise ValueError(f"there is no upload {key!r}: what the method's finish uploads is {known}")
    return uploads[key]


def keeps_client_state(method: Method, x: Vec) -> bool:
    """Return whether the method's clients keep state from round to round."""
    one: Ints = np.ones(1, dtype=np.int64)
    return bool(method.init_client(x, Clients(one - 1, one, one[:, None], one)))


def why_not_robust(method: Method, x: Vec) -> str | None:
    """Return why the method needs more of its clients than averaged increments; None if it does not."""
    if keeps_client_state(method, x):
        return "its clients keep state that must agree with the server's sums"
    return "it sums what clients compute in a first phase" if isinstance(method, TwoPhase) else None


def require_possible(aggregation: Aggregation, method: Method, x: Vec) -> None:
    """Raise ValueError if robust aggregation is configured but the method needs more than averaged increments."""
    option = aggregation.needs_uploads or (aggregation.max_norm is not None and "aggregation.max_norm")
    if option and (reason := why_not_robust(method, x)):
        raise ValueError(f"{option} is not possible with the method {method.name}: {reason}")


@dataclass(frozen=True, eq=False)
class Received:
    """The uploads of a round within its bound, the bound, and how many increments were scaled down to it."""

    uploads: Uploads
    bound: float | None
    clipped: int


def receive(aggregation: Aggregation, uploads: ClientUploads, buffers: Vec) -> Received:
    """Return the uploads of a round as they are summed, given the buffers that clients were sent."""
    bound, clipped = None, 0
    if aggregation.max_norm is not None or aggregation.norm_ratio is not None:
        norms = uploads.norms("delta")
        bound = aggregation.bound(norms)
        clipped = int((norms > bound).sum())
        if clipped or aggregation.norm_ratio is not None:
            uploads = BoundedUploads(uploads, _shrinking(norms, bound), aggregation, buffers)
    if aggregation.rule == "mean":
        return Received(uploads, bound, clipped)
    if aggregation.rule == "centered":
        return Received(CenteredUploads(uploads, 0.5), bound, clipped)
    return Received(
        RobustUploads(uploads, 0.5 if aggregation.rule == "median" else aggregation.trim), bound, clipped
    )


@dataclass(frozen=True, eq=False)
class MethodUploads:
    """Uploads as a method sees them: sums, and single ones only if it declares that it reads them."""

    uploads: Uploads
    method: Method
    _alone: dict[str, set[int]] = field(default_factory=dict)
    """By key, the clients that a sum was over alone: one may have all the weight, but not each in turn."""

    def sum(self, key: str, weights: Floats) -> Tensor:
        table = np.atleast_2d(weights)
        alone = self._alone.setdefault(key, set())
        alone.update(table[np.count_nonzero(table, axis=1) == 1].nonzero()[1].tolist())
        if len(alone) > 1:
            self._require_declared("sums over single clients")
        return self.uploads.sum(key, weights)

    def rows(self, key: str) -> Tensor:
        self._require_declared("uploads.rows")
        return self.uploads.rows(key)

    def _require_declared(self, what: str) -> None:
        name = type(self.method).__qualname__
        if not self.method.reads_rows:
            raise ValueError(f"{name} reads single uploads by {what}: it must declare reads_rows = True")


@dataclass(frozen=True, eq=False)
class UploadRows:
    """Uploads held in memory, one row per client of the cohort."""

    by_key: State

    @property
    def bytes(self) -> int:
        return bytes_of(self.by_key)

    def norms(self, key: str) -> Floats:
        return row_norms(self.rows(key))

    def rows(self, key: str) -> Tensor:
        return find_upload(self.by_key, key)

    def sum(self, key: str, weights: Floats) -> Tensor:
        rows = self.rows(key)
        table = torch.as_tensor(weights, dtype=rows.dtype, device=rows.device)
        return (table @ rows.reshape(len(rows), -1)).reshape((*table.shape[:-1], *rows.shape[1:]))


@dataclass(frozen=True, eq=False)
class BoundedUploads:
    """Uploads of which none is out of proportion to the others.

    Increments are scaled by factors of their own, and so are changes of buffers, and whatever else a method's
    clients upload, by that of their norms to the median norm of the same key.
    """

    uploads: ClientUploads
    factors: Floats
    aggregation: Aggregation
    buffers: Vec

    @property
    def bytes(self) -> int:
        return self.uploads.bytes

    def norms(self, key: str) -> Floats:
        return self._lengths(key) * self._factors(key)

    def rows(self, key: str) -> Tensor:
        scaled = _scale_rows(self._changes(key), self._factors(key))
        return self.buffers + scaled if key == "buffers" else scaled

    def sum(self, key: str, weights: Floats) -> Tensor:
        factors = self._factors(key)
        if key == "buffers" and (factors < 1.0).any():
            return UploadRows({key: self.rows(key)}).sum(key, weights)
        return self.uploads.sum(key, weights * factors)

    def _changes(self, key: str) -> Tensor:
        rows = self.uploads.rows(key)
        return rows - self.buffers if key == "buffers" else rows

    def _factors(self, key: str) -> Floats:
        if key == "delta":
            return self.factors
        if self.aggregation.norm_ratio is None:
            return np.ones_like(self.factors)
        lengths = self._lengths(key)
        return _shrinking(lengths, self.aggregation.relative_bound(lengths))

    def _lengths(self, key: str) -> Floats:
        return row_norms(self._changes(key)) if key == "buffers" else self.uploads.norms(key)


def _shrinking(norms: Floats, bound: float) -> Floats:
    """Return the factors that bring norms down to a bound."""
    return np.divide(bound, norms, out=np.ones_like(norms), where=norms > bound)


@dataclass(frozen=True, eq=False)
class RobustUploads:
    """Uploads whose weighted mean is replaced by a weighted trimmed mean; a trim of one half is the median.

    Of several sums, the first replaces the mean of the uploads, and each other the mean of their multiples by
    its weights over those of the first: FedCM's momentum is the median of the increments per step, not the median
    of the increments by the mean of 1/steps.
    """

    uploads: ClientUploads
    trim: float

    def rows(self, key: str) -> Tensor:
        return self.uploads.rows(key)

    def sum(self, key: str, weights: Floats) -> Tensor:
        rows = self.uploads.rows(key)
        table = np.atleast_2d(weights)
        first, total = table[0], float(table[0].sum())
        shares = first / total
        multiples = np.divide(table, first, out=np.zeros_like(table), where=first != 0)
        sums = [
            total * self.centre(_scale_rows(rows, own) if row else rows, shares)
            for row, own in enumerate(multiples)
        ]
        return sums[0] if weights.ndim == 1 else torch.stack(sums)

    def centre(self, rows: Tensor, shares: Floats) -> Tensor:
        """Return what takes the place of the mean of these rows with these shares of the weight."""
        if np.ptp(shares) <= ROUNDING:
            clients = len(rows)
            drop = min(max(1, int(self.trim * clients + ROUNDING)), (clients - 1) // 2)
            return rows.sort(dim=0).values[drop : clients - drop].mean(dim=0)
        trim = min(max(self.trim, float(shares.max())), WIDEST_TRIM)
        values, order = rows.sort(dim=0)
        each = torch.as_tensor(shares, dtype=rows.dtype, device=rows.device)[order]
        above = each.cumsum(dim=0)
        kept = (above.clamp(max=1.0 - trim) - (above - each).clamp(min=trim)).clamp(min=0.0)
        return (kept * values).sum(dim=0) / kept.sum(dim=0)


class CenteredUploads(RobustUploads):
    """Uploads whose mean is replaced by one step of centred clipping (Karimireddy et al., 2021).

    From the coordinate-wise median, each client moves the result by its weight towards its own upload, as if that
    were no farther away than the uploads are in the median.
    """

    def centre(self, rows: Tensor, shares: Floats) -> Tensor:
        median = super().centre(rows, shares)
        away = rows - median
        distances = row_norms(away)
        reach = float(np.quantile(distances, 0.5, method="lower"))
        factors = np.divide(reach, distances, out=np.ones_like(distances), where=distances > reach)
        return median + _scale_rows(away, shares * factors).sum(dim=0)


def _scale_rows(rows: Tensor, factors: Floats) -> Tensor:
    column = torch.as_tensor(factors, dtype=rows.dtype, device=rows.device)
    return rows * column.view(-1, *[1] * (rows.dim() - 1))


def row_norms(rows: Tensor) -> Floats:
    """Return the norm of each row."""
    norms: Floats = torch.linalg.vector_norm(rows.reshape(len(rows), -1), dim=-1).double().cpu().numpy()
    return norms


@dataclass(frozen=True, eq=False)
class CohortUpdates:
    """The clients that answered, by ascending id. Their uploads may be here, or wherever they were made."""

    ids: Ints
    uploads: ClientUploads
    report: Report
    learning_rates: Floats
    loss: Floats
    accuracy: Floats
    left_out: Mapping[int, LeftOut]

    @classmethod
    def of(cls, updates: ClientUpdates, uploads: ClientUploads | None = None) -> "CohortUpdates":
        """Return the updates of all clients; their uploads are rows in memory unless they are elsewhere."""
        return cls(
            updates.ids,
            UploadRows(updates.upload) if uploads is None else uploads,
            updates.report,
            updates.learning_rates,
            updates.loss,
            updates.accuracy,
            updates.left_out,
        )

    def without(self, lost: UploadsLostError) -> "CohortUpdates":
        """Return the updates of those whose uploads remain."""
        kept = ~np.isin(self.ids, list(lost.clients))
        return replace(
            self,
            ids=self.ids[kept],
            uploads=lost.remaining,
            report={key: values[kept] for key, values in self.report.items()},
            learning_rates=self.learning_rates[kept],
            loss=self.loss[kept],
            accuracy=self.accuracy[kept],
            left_out={**self.left_out, **lost.clients},
        )


def merge_updates(parts: Sequence[CohortUpdates]) -> CohortUpdates:
    """Return the answers of several groups of clients, whose uploads are rows in memory, as those of one."""
    ids = np.concatenate([part.ids for part in parts])
    order = np.argsort(ids)

    def join(arrays: Sequence[Floats]) -> Floats:
        return np.concatenate(arrays)[order]

    full = [part for part in parts if len(part.ids)]
    own = [part.uploads.by_key for part in full if isinstance(part.uploads, UploadRows)]
    rows = {key: torch.cat([each[key] for each in own])[torch.from_numpy(order)] for key in (own or [{}])[0]}
    return CohortUpdates(
        ids[order],
        UploadRows(rows),
        {key: join([part.report[key] for part in full]) for key in (full[0].report if full else {})},
        join([part.learning_rates for part in parts]),
        join([part.loss for part in parts]),
        join([part.accuracy for part in parts]),
        {client: why for part in parts for client, why in part.left_out.items()},
    )
