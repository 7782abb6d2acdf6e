"""FedSpeed: FedDyn's penalty and dual, with the gradient taken at the ascended point.

Sun, Shen, Huang, Ding, Tao. FedSpeed: Larger Local Interval, Less Communication Round, and Higher Generalization
Accuracy. ICLR 2023. (Read: the abstract; the authors' code, woodenchild95/FL-Simulator; this project's notes.)

    v = g(w + rho · g(w)/‖g(w)‖) + λ (h_k + w − x)        direction of each local step
    h_k⁺ = h_k + (w_k − x),   x⁺ = mean_S(w_k) + mean_N(h_k⁺)     as FedDyn (`feddyn.py`)

`lam` is 1 over the paper's λ: 0.1 there is 10. rho = 0 is FedDyn. Departures from the paper, both shared with the
authors' code: the server adds the mean dual of all clients, where the paper averages corrected models of the
round's clients; and the gradient is the ascended one alone, where the paper mixes it with the plain one by a
share that its experiments set to 1.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.methods.feddyn import FedDyn
from fedwcm.methods.sam import SharpnessAware


@dataclass(frozen=True, kw_only=True)
class FedSpeed(SharpnessAware, FedDyn):
    """FedDyn with gradients at the ascended point.

    Args:
        rho: ρ, the length of the step uphill; 0 is FedDyn.
    """

    name: ClassVar[str] = "fedspeed"
