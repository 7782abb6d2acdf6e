"""Options of the server: how it sums uploads, and what it does besides. Nothing here imports torch."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedwcm.core.checks import require, require_choices


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """How the server sums uploads.

    Args:
        rule: `mean` sums with the method's weights; `median` and `trimmed` replace a weighted mean by the weighted
            median of each coordinate, or by its weighted mean without the largest and smallest values; `centered`
            moves from that median towards each increment, by at most the median distance (centred clipping).
        trim: share of the weight dropped at either end of a coordinate, the heaviest client's at least, so that
            the rule protects small rounds too; only for `trimmed`.
        max_share: largest share of a round's weight that one client may have, or twice an equal share if that is
            more; `none` for no bound.
        norm_ratio: bound on the norm of a client's increment as a multiple of the median norm of the round; `none`
            for no such bound.
        max_norm: bound on the norm of a client's increment, to which longer ones are scaled; `none` for no bound.
        quantile: share of the increments that the bound is to leave as they are: it starts at `max_norm` and
            follows that share from round to round (Andrew et al., 2021); `none` for a bound that stays.
        norm_lr: how fast the bound follows.
    """

    rule: Literal["mean", "median", "trimmed", "centered"] = "mean"
    trim: float = 0.1
    max_share: float | None = None
    norm_ratio: float | None = None
    max_norm: float | None = None
    quantile: float | None = None
    norm_lr: float = 0.2

    def __post_init__(self) -> None:
        require_choices(self)
        require(0 < self.trim < 0.5, "trim", self.trim, "in (0, 0.5)")
        require(
            self.max_share is None or 0 < self.max_share <= 1, "max_share", self.max_share, "in (0, 1] or none"
        )
        require(self.norm_ratio is None or self.norm_ratio > 0, "norm_ratio", self.norm_ratio, "positive or none")
        require(self.max_norm is None or self.max_norm > 0, "max_norm", self.max_norm, "positive or none")
        require(self.quantile is None or 0 < self.quantile < 1, "quantile", self.quantile, "in (0, 1) or none")
        require(self.norm_lr > 0, "norm_lr", self.norm_lr, "positive")
        if self.quantile is not None and self.max_norm is None:
            raise ValueError(f"quantile = {self.quantile} needs a bound to start from: set max_norm")

    @property
    def needs_uploads(self) -> str | None:
        """The option for which the server must see every single upload, with its value; None if there is none."""
        if self.rule != "mean":
            return f"aggregation.rule = {self.rule!r}"
        return None if self.norm_ratio is None else f"aggregation.norm_ratio = {self.norm_ratio:g}"

    def bound(self, norms: NDArray[np.float64]) -> float:
        """Return the bound on the norms of a round's increments; infinite if there is none."""
        usual = float(np.quantile(norms, 0.5, method="lower"))
        relative = math.inf if self.norm_ratio is None else self.norm_ratio * usual
        return relative if self.max_norm is None else min(relative, self.max_norm)

    def next_bound(self, bound: float | None, clipped: float) -> float | None:
        """Return the bound of the next round, given the share of the increments that were longer than this one."""
        if bound is None or self.quantile is None:
            return bound
        return bound * math.exp(self.norm_lr * (clipped - (1.0 - self.quantile)))


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """What the server does besides aggregation.

    Args:
        ema: decay of a moving average of the global model over the rounds, which is then what is evaluated and
            handed over; 0.9 averages about ten rounds, 0 is the last model itself.
    """

    ema: float = 0.0

    def __post_init__(self) -> None:
        require(0 <= self.ema < 1, "ema", self.ema, "in [0, 1)")
