"""Sharpness-aware minimisation: descend along the gradient taken a step uphill. For any method's local step.

Foret, Kleiner, Mobahi, Neyshabur. Sharpness-Aware Minimization for Efficiently Improving Generalization. ICLR
2021. (Read: public code of its federated descendants, woodenchild95/FL-Simulator.)

    e = rho · g(w) / ‖g(w)‖          the norm over all parameters of a client, not tensor by tensor
    direction: g(w + e) in place of g(w)

It costs a second gradient per step, on the same batch. BatchNorm's statistics and the training loss are those
of the first, at `w`. rho = 0 is the method without it, at the price of one gradient.
"""

from dataclasses import dataclass

from fedwcm.core.checks import require
from fedwcm.core.types import Context, GradientOracle, Point, State, Vec
from fedwcm.engine.fast.ascent import perturbation_scale


@dataclass(frozen=True, kw_only=True)
class Ascent:
    """What makes a method sharpness-aware, if it is mixed in before it.

    Not a `Method` itself: its defaults would then come before those of the method that it is mixed into.
    """

    rho: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]
        require(self.rho >= 0, "rho", self.rho, "non-negative")

    def gradient_at(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> Point:
        return grad.uphill(w, self.rho) if self.rho else w


def perturbation(direction: Vec, rho: float) -> Vec:
    """The step of length rho along each client's direction; zero where the direction is zero."""
    return direction * perturbation_scale(direction, rho)
