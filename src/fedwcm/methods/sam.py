"""Sharpness-aware minimisation: descend along the gradient taken a step uphill. For any method's local step.

Foret, Kleiner, Mobahi, Neyshabur. Sharpness-Aware Minimization for Efficiently Improving Generalization. ICLR
2021. Sources: woodenchild95/FL-Simulator, which has its federated descendants.

    e = rho · g(w) / ‖g(w)‖          the norm over all parameters of a client, not tensor by tensor
    direction: g(w + e) in place of g(w)

It costs a second gradient per step, on the same batch. BatchNorm's statistics and the training loss are those
of the first, at `w`. rho = 0 is the method without it, at the price of one gradient.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedwcm.core.checks import require
from fedwcm.core.types import Context, GradientOracle, State, Vec

if TYPE_CHECKING:
    from fedwcm.core.method import Method as Base
else:
    Base = object


@dataclass(frozen=True, kw_only=True)
class SharpnessAware(Base):
    """Makes a method sharpness-aware, if mixed in before it.

    Not a `Method` when it runs: its defaults would then come before those of the method that it is mixed into.
    """

    rho: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.rho >= 0, "rho", self.rho, "non-negative")

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        return super().direction(w, grad.ascended(self.rho), c, ctx)
