"""The options of a client's optimizer."""

from dataclasses import dataclass, fields
from typing import Literal

from fedwcm.core.checks import require, require_choices


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """How a client steps along the method's direction. The optimizer's state starts anew in every round.

    Args:
        optimizer: `sgd`, `adam`, or `adamw` (weight decay apart from the moments), if the method permits it.
        momentum: of `sgd`: factor on the sum of the earlier directions.
        nesterov: of `sgd`: Nesterov's form of the momentum.
        betas: of Adam: decay of the mean direction and of its mean square.
        eps: of Adam: added to the root of the mean square.
        weight_decay: times the model, added to the direction after clipping.
        clip: maximum norm of a step's direction; `none` for no clipping.
    """

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    betas: tuple[float, ...] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float | None = None

    def __post_init__(self) -> None:
        require_choices(self)
        require(0 <= self.momentum < 1, "momentum", self.momentum, "in [0, 1)")
        two_shares = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        require(two_shares, "betas", self.betas, "two numbers in [0, 1)")
        require(self.eps > 0, "eps", self.eps, "positive")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "non-negative")
        require(self.clip is None or self.clip > 0, "clip", self.clip, "positive or none")
        defaults = {field.name: field.default for field in fields(OptimizerOptions)}
        others = ("betas", "eps") if self.optimizer == "sgd" else ("momentum", "nesterov")
        for field in others:
            value, unused = getattr(self, field), defaults[field]
            require(value == unused, field, value, f"{unused} with optimizer = {self.optimizer!r}, which has none")
        require(bool(self.momentum) or not self.nesterov, "nesterov", True, "false without momentum")

    @property
    def plain(self) -> bool:
        """Whether a step depends on nothing but its own direction, linearly: SGD without momentum or clipping."""
        return self.optimizer == "sgd" and not self.momentum and self.clip is None
