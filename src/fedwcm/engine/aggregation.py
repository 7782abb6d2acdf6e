"""Options of the server's aggregation. Nothing here imports torch."""

from dataclasses import dataclass
from typing import Literal

from fedwcm.core.checks import require, require_choices


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """How the server sums uploads.

    Args:
        rule: `mean` sums with the method's weights; `median` and `trimmed` replace a weighted mean by the
            coordinate-wise median, or by the mean without the largest and smallest values of each coordinate.
        trim: share of the clients dropped at either end of a coordinate; only for `trimmed`.
        max_norm: bound on the norm of a client's increment, to which longer ones are scaled; `none` for no bound.
    """

    rule: Literal["mean", "median", "trimmed"] = "mean"
    trim: float = 0.1
    max_norm: float | None = None

    def __post_init__(self) -> None:
        require_choices(self)
        require(0 < self.trim < 0.5, "trim", self.trim, "in (0, 0.5)")
        require(self.max_norm is None or self.max_norm > 0, "max_norm", self.max_norm, "positive or none")
