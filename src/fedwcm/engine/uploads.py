"""Sums over the clients' uploads: with the method's weights, or robust against faulty clients."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedwcm.core.method import Method
from fedwcm.core.mixins import ClientStatistics, TwoPhase
from fedwcm.core.types import Clients, Floats, Ints, LeftOut, State, Uploads, Vec, bytes_of
from fedwcm.engine.aggregation import Aggregation

T = TypeVar("T")

ROUNDING = 1e-9
"""Added to a product of a share and a number of clients, so that 0.29 of 100 is 29."""


class ClientUploads(Uploads, Protocol):
    """The uploads of a phase, in the order of the clients' ids, wherever they are held."""

    @property
    def bytes(self) -> int:
        """What the clients have sent."""
        ...

    def norms(self, key: str) -> Floats:
        """Return the norm of each client's upload."""
        ...

    def table(self, key: str) -> Tensor:
        """Return all uploads, a row for each client: what a sum does not need, and a median does."""
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


def uploaded(uploads: Mapping[str, T], key: str) -> T:
    """Return what is known of an upload; the error for an unknown one lists the known ones."""
    if key not in uploads:
        known = ", ".join(map(repr, uploads))
        raise ValueError(f"there is no upload {key!r}: what the method's finish uploads is {known}")
    return uploads[key]


def keeps_client_state(method: Method, x: Vec) -> bool:
    """Return whether the method's clients keep state from round to round."""
    one: Ints = np.ones(1, dtype=np.int64)
    return bool(method.init_client(x, Clients(one - 1, one, one[:, None], one)))


def require_possible(aggregation: Aggregation, method: Method, x: Vec) -> None:
    """Raise ValueError if robust aggregation is configured but the method needs more than averaged increments."""
    if aggregation.rule == "mean" and aggregation.max_norm is None:
        return
    reason = None
    if keeps_client_state(method, x):
        reason = "its clients keep state that must agree with the server's sums"
    elif isinstance(method, TwoPhase):
        reason = "it sums what clients compute in a first phase"
    elif isinstance(method, ClientStatistics) and aggregation.rule != "mean":
        reason = "a median ignores the weights that it computes"
    if reason:
        rule = aggregation.rule
        option = "aggregation.max_norm" if rule == "mean" else f"aggregation.rule = {rule!r}"
        raise ValueError(f"{option} is not possible with the method {method.name}: {reason}")


def receive(aggregation: Aggregation, uploads: ClientUploads) -> tuple[Uploads, int]:
    """Return the uploads of a round, and the number of increments that were scaled down."""
    clipped = 0
    if aggregation.max_norm is not None:
        norms = uploads.norms("delta")
        clipped = int((norms > aggregation.max_norm).sum())
        if clipped:
            uploads = ScaledIncrements(uploads, aggregation.max_norm / np.maximum(norms, aggregation.max_norm))
    if aggregation.rule == "mean":
        return uploads, clipped
    return RobustUploads(uploads, 0.5 if aggregation.rule == "median" else aggregation.trim), clipped


@dataclass(frozen=True, eq=False)
class UploadRows:
    """Uploads held in memory, one row per client of the cohort."""

    rows: State

    @property
    def bytes(self) -> int:
        return bytes_of(self.rows)

    def norms(self, key: str) -> Floats:
        return row_norms(self.table(key))

    def table(self, key: str) -> Tensor:
        return uploaded(self.rows, key)

    def sum(self, key: str, weights: Floats) -> Tensor:
        rows = self.table(key)
        table = torch.as_tensor(weights, dtype=rows.dtype, device=rows.device)
        return (table @ rows.reshape(len(rows), -1)).reshape((*table.shape[:-1], *rows.shape[1:]))


@dataclass(frozen=True, eq=False)
class ScaledIncrements:
    """Uploads whose increments are scaled by a factor of each client's own."""

    uploads: ClientUploads
    factors: Floats

    @property
    def bytes(self) -> int:
        return self.uploads.bytes

    def norms(self, key: str) -> Floats:
        return self.uploads.norms(key) * self._factors(key)

    def table(self, key: str) -> Tensor:
        return _scaled(self.uploads.table(key), self._factors(key))

    def sum(self, key: str, weights: Floats) -> Tensor:
        return self.uploads.sum(key, weights * self._factors(key))

    def _factors(self, key: str) -> Floats:
        return self.factors if key == "delta" else np.ones_like(self.factors)


@dataclass(frozen=True, eq=False)
class RobustUploads:
    """Uploads whose weighted mean is replaced by a trimmed mean; a trim of one half is the median.

    Of several sums, the first replaces the mean of the uploads, and each other the mean of their multiples by
    its weights over those of the first: FedCM's momentum is the median of the increments per step, not the median
    of the increments by the mean of 1/steps.
    """

    uploads: ClientUploads
    trim: float

    def sum(self, key: str, weights: Floats) -> Tensor:
        rows = self.uploads.table(key)
        if weights.ndim == 1:
            return float(weights.sum()) * self._centre(rows)
        first = weights[0]
        return torch.stack([float(first.sum()) * self._centre(_scaled(rows, own / first)) for own in weights])

    def _centre(self, rows: Tensor) -> Tensor:
        clients = len(rows)
        drop = min(max(1, int(self.trim * clients + ROUNDING)), (clients - 1) // 2)
        return rows.sort(dim=0).values[drop : clients - drop].mean(dim=0)


def _scaled(rows: Tensor, factors: Floats) -> Tensor:
    column = torch.as_tensor(factors, dtype=rows.dtype, device=rows.device)
    return rows * column.view(-1, *[1] * (rows.dim() - 1))


def row_norms(rows: Tensor) -> Floats:
    """Return the norm of each row."""
    norms: Floats = torch.linalg.vector_norm(rows.reshape(len(rows), -1), dim=-1).double().cpu().numpy()
    return norms
