"""FedSpeed: FedDyn's penalty and dual, with the gradient taken at the ascended point.

Sun, Shen, Huang, Ding, Tao. FedSpeed: Larger Local Interval, Less Communication Round, and Higher Generalization
Accuracy. ICLR 2023. Sources: woodenchild95/FL-Simulator (the authors' code).

    v = g(w + rho · g(w)/‖g(w)‖) + λ (h_k + w − x)        direction of each local step
    h_k⁺ = h_k + (w_k − x),   x⁺ = mean_S(w_k) + mean_N(h_k⁺)     as FedDyn (`feddyn.py`)

`lam` is the inverse of the paper's λ: the paper's 0.1 is 10 here. rho = 0 is FedDyn. Departures from the paper,
both shared with the authors' code: the server adds the mean dual of all clients, whereas the paper averages
corrected models of the round's clients; and only the ascended gradient is used, whereas the paper mixes it with
the plain one by a share that its experiments set to 1.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.methods.feddyn import FedDyn
from fedwcm.methods.sam import SharpnessAware


@dataclass(frozen=True, kw_only=True)
class FedSpeed(SharpnessAware, FedDyn):
    """FedDyn with gradients at the ascended point.

    Args:
        rho: ρ, the length of the ascent step; 0 is FedDyn.
    """

    name: ClassVar[str] = "fedspeed"
