"""FedGamma: SCAFFOLD with the gradient taken at the ascended point.

Dai, Yang, Sun, Shen, Tian, Wang, Zhang. FedGAMMA: Federated Learning With Global Sharpness-Aware Minimization.
IEEE Transactions on Neural Networks and Learning Systems, 2023. Sources: woodenchild95/FL-Simulator.

    v = g(w + rho · g(w)/‖g(w)‖) − c_k + c                direction of each local step
    c_k⁺, c⁺, x⁺                                          as SCAFFOLD (`scaffold.py`)

The ascent follows the plain gradient, without the control variates, as in that code. rho = 0 is SCAFFOLD.
Departures: none. Pitfall avoided: dividing the control variates by E·n/b of client 0 instead of the steps taken.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.methods.sam import SharpnessAware
from fedwcm.methods.scaffold import SCAFFOLD


@dataclass(frozen=True, kw_only=True)
class FedGamma(SharpnessAware, SCAFFOLD):
    """SCAFFOLD with gradients at the ascended point.

    Args:
        rho: ρ, the length of the ascent step; 0 is SCAFFOLD.
    """

    name: ClassVar[str] = "fedgamma"
