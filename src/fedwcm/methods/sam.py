"""Sharpness-aware minimisation for the local steps of any method: descend along the gradient at an ascended point.

Foret, Kleiner, Mobahi, Neyshabur. Sharpness-Aware Minimization for Efficiently Improving Generalization. ICLR
2021. Sources: woodenchild95/FL-Simulator, which has federated methods built on it.

    e = rho · g(w) / ‖g(w)‖          the norm over all parameters of a client, not per tensor
    direction: g(w + e) instead of g(w)

It costs a second gradient per step, on the same batch. BatchNorm's statistics and the training loss are those
of the first gradient, at `w`. rho = 0 is the method without it, at the cost of one gradient.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedwcm.core.ranges import NonNegative
from fedwcm.core.types import Context, GradientOracle, State, Vec

if TYPE_CHECKING:
    from fedwcm.core.method import Method as Base
else:
    Base = object


@dataclass(frozen=True, kw_only=True)
class SharpnessAware(Base):
    """Mix-in that makes the method after it sharpness-aware.

    It is a `Method` only for the type checker: at run time, inheriting from `Method` would put the defaults of
    `Method` before those of the method it is mixed into.
    """

    rho: NonNegative = 0.1

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        return super().direction(w, grad.ascended(self.rho), c, ctx)
