"""FedGamma: SCAFFOLD with the gradient taken at the ascended point.

Dai, Yang, Sun, Shen, Tian, Wang, Zhang. FedGAMMA: Federated Learning With Global Sharpness-Aware Minimization.
IEEE Transactions on Neural Networks and Learning Systems, 2023. (Read: the abstract, and public code,
woodenchild95/FL-Simulator.)

    v = g(w + rho · g(w)/‖g(w)‖) − c_k + c                direction of each local step
    c_k⁺, c⁺, x⁺                                          as SCAFFOLD (`scaffold.py`)

The ascent follows the bare gradient, without the control variates, as in that code. rho = 0 is SCAFFOLD.
Departures: none. Trap avoided: control variates divided by E·n/b of client 0 in place of the steps taken.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.methods.sam import SharpnessAware
from fedwcm.methods.scaffold import SCAFFOLD


@dataclass(frozen=True, kw_only=True)
class FedGamma(SharpnessAware, SCAFFOLD):
    """SCAFFOLD with gradients at the ascended point.

    Args:
        rho: ρ, the length of the step uphill; 0 is SCAFFOLD.
    """

    name: ClassVar[str] = "fedgamma"
