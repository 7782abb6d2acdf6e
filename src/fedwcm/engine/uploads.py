"""Sums over the clients' uploads: with the method's weights, or robust against faulty clients."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedwcm.core.method import Method
from fedwcm.core.mixins import ClientStatistics, TwoPhase
from fedwcm.core.types import Clients, Floats, Ints, State, Uploads, Vec
from fedwcm.engine.aggregation import Aggregation


def keeps_client_state(method: Method, x: Vec) -> bool:
    """Return whether the method's clients keep state from round to round."""
    one: Ints = np.ones(1, dtype=np.int64)
    return bool(method.init_client(x, Clients(one - 1, one, one[:, None], one)))


def require_possible(aggregation: Aggregation, method: Method, keeps_client_state: bool) -> None:
    """Raise ValueError if robust aggregation is configured but the method needs more than averaged increments."""
    if aggregation.rule == "mean" and aggregation.max_norm is None:
        return
    reason = None
    if keeps_client_state:
        reason = "its clients keep state that must agree with the server's sums"
    elif isinstance(method, TwoPhase):
        reason = "it sums what clients compute in a first phase"
    elif isinstance(method, ClientStatistics) and aggregation.rule != "mean":
        reason = "a median ignores the weights that it computes"
    if reason:
        rule = aggregation.rule
        option = "aggregation.max_norm" if rule == "mean" else f"aggregation.rule = {rule!r}"
        raise ValueError(f"{option} is not possible with the method {method.name}: {reason}")


def receive(aggregation: Aggregation, rows: State) -> tuple[Uploads, int]:
    """Return the uploads of a round, and the number of increments that were scaled down."""
    clipped = 0
    if aggregation.max_norm is not None:
        norms = torch.linalg.vector_norm(rows["delta"], dim=-1, keepdim=True)
        clipped = int((norms > aggregation.max_norm).sum())
        if clipped:
            rows = {
                **rows,
                "delta": rows["delta"] * (aggregation.max_norm / norms.clamp(min=aggregation.max_norm)),
            }
    if aggregation.rule == "mean":
        return UploadRows(rows), clipped
    return RobustRows(rows, 0.5 if aggregation.rule == "median" else aggregation.trim), clipped


@dataclass(frozen=True, eq=False)
class UploadRows:
    """Uploads held in memory, one row per client of the cohort."""

    rows: State

    def sum(self, key: str, weights: Floats) -> Tensor:
        rows = self.rows[key]
        table = torch.as_tensor(weights, dtype=rows.dtype, device=rows.device)
        return (table @ rows.reshape(len(rows), -1)).reshape((*table.shape[:-1], *rows.shape[1:]))


@dataclass(frozen=True, eq=False)
class RobustRows:
    """Uploads whose weighted mean is replaced by a trimmed mean; a trim of one half is the median."""

    rows: State
    trim: float

    def sum(self, key: str, weights: Floats) -> Tensor:
        rows = self.rows[key]
        clients = len(rows)
        drop = min(int(self.trim * clients), (clients - 1) // 2)
        centre = rows.sort(dim=0).values[drop : clients - drop].mean(dim=0)
        total = torch.as_tensor(weights.sum(axis=-1), dtype=rows.dtype, device=rows.device)
        return total.reshape(*total.shape, *[1] * centre.dim()) * centre
