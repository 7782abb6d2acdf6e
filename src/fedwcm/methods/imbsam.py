"""ImbSAM: FedAvg with sharpness-aware local steps for the rare classes only.

Zhou, Qu, Xu, Shen. ImbSAM: A Closer Look at Sharpness-Aware Minimization in Class-Imbalanced Recognition. ICCV
2023. Sources: cool-xuan/Imbalanced_SAM (the authors' code).

    g = g_head + g_tail                                  the parts of a batch's gradient, by the samples' classes
    e = rho · g_tail(w) / ‖g_tail(w)‖
    w ← w − lr · (g_head(w) + g_tail(w + e))             each local step

The tail are the classes with the fewest samples of all clients, which together hold at most the share `tail_share`
of the data. Flat minima help where a class overfits, and frequent classes are spared the cost in accuracy.
rho = 0, or no tail, is FedAvg; tail_share = 1 is FedSAM. A step costs three gradients; a client without samples of
the tail in its batch takes a plain step.

Departures: the paper calls classes with at most eta samples tail (100 on CIFAR-100-LT); a share says the same for
data of any size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedwcm.core.checks import Needs
from fedwcm.core.perturbation import perturbation
from fedwcm.core.ranges import NonNegative, Share
from fedwcm.core.types import Context, Floats, GradientOracle, State, Vec
from fedwcm.methods.fedavg import FedAvg

ROUNDING = 1e-9
"""Added to a share, so that a sum of shares that is equal to it does not exceed it."""


@dataclass(frozen=True, kw_only=True)
class ImbSAM(FedAvg):
    """FedAvg with gradients at the ascended point for samples of rare classes.

    Args:
        rho: ρ, the length of the ascent step; 0 is FedAvg.
        tail_share: share of the data that the rare classes hold together, at most; 1 is FedSAM.
    """

    name: ClassVar[str] = "imbsam"
    needs: ClassVar[Mapping[str, Needs]] = {"tail_share": Needs(lambda method: method.rho > 0, "rho > 0")}

    rho: NonNegative = 0.1
    tail_share: Share = 0.2

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        g = grad(w)
        if not self.rho:
            return g, c
        tail = ctx.constant(
            ("imbsam", self.tail_share), lambda: rare_classes(ctx.population.prior, self.tail_share)
        )
        of_tail = grad.of_classes(tail)
        at_w = of_tail(w)
        return g - at_w + of_tail(w + perturbation(at_w, self.rho)), c


def rare_classes(prior: Floats, share: float) -> Floats:
    """Return 1 for the rarest classes, which together hold at most this share, and 0 for the others."""
    order = np.argsort(prior, kind="stable")
    tail = np.zeros(len(prior))
    tail[order] = np.cumsum(prior[order]) <= share + ROUNDING
    return tail
