"""Ideas that were measured on validation data and earned no place in the package, so that it can be repeated."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedwcm.core.types import Cohort, Context, Population, Report, State, Uploads, Vec
from fedwcm.losses.class_weights import class_counts
from fedwcm.losses.prior_ce import PriorCE
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.fedwcm import FedWCMX
from fedwcm.methods.head import head_of, with_head


@dataclass(frozen=True, kw_only=True)
class WarmStart(FedWCMX):
    """FedWCM-X whose momentum grows in: in round r, counted from 0, α is at least 1 / (r + 1)."""

    name: ClassVar[str] = "warm_start"

    def init(self, x: Vec, population: Population) -> State:
        return {**super().init(x, population), "alpha": torch.tensor(1.0, dtype=torch.float64)}

    def next_alpha(self, s: State, cohort: Cohort) -> float:
        return max(super().next_alpha(s, cohort), 1.0 / (cohort.round + 2))


@dataclass(frozen=True, kw_only=True)
class RowsByClass(FedAvg):
    """FedAvg whose head is averaged row by row, weighted by n_kc: who lacks a class does not shrink its row."""

    name: ClassVar[str] = "rows_by_class"

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        upload, report, c = super().finish(w, c, ctx)
        counts = torch.as_tensor(ctx.clients.counts, dtype=w.dtype)
        rows = torch.stack([head_of(delta, ctx.layout)[0] for delta in upload["delta"]])
        return {**upload, "rows": counts[..., None] * rows, "counts": counts}, report, c

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        ones = np.ones(len(cohort))
        rows, counts = uploads.sum("rows", ones), uploads.sum("counts", ones)
        head, width = head_of(x, cohort.layout)
        moved, s = super().update(x, s, uploads, cohort)
        head = head + rows / counts.clamp(min=1)[:, None]
        return with_head(moved, cohort.layout.head_slices[0].start, head, width), s


@dataclass(frozen=True, kw_only=True)
class AbsentShifted(PriorCE):
    """The prior loss with the logits of the classes that a client lacks moved by `absent`."""

    name: ClassVar[str] = "absent_shifted"

    absent: float = -1.0

    def _shift(self, ctx: Context) -> Tensor:
        lacking = ctx.constant(("lacking", self.absent), lambda: (class_counts("client", ctx) == 0)[:, None])
        return super()._shift(ctx) + self.absent * lacking.to(torch.float32)
