"""FedSAM: FedAvg with sharpness-aware local steps.

Qu, Li, Duan, Liu, Tang, Lu. Generalized Federated Learning via Sharpness Aware Minimization. ICML 2022. Sources:
woodenchild95/FL-Simulator.

    w ← w − lr · g(w + rho · g(w)/‖g(w)‖)                 each local step, both gradients on the same batch
    x ← x + server_lr · Σ_k p_k (w_k − x)                 as FedAvg

rho = 0 is FedAvg. Departures: none. Pitfall avoided: in that code both passes of a step would update BatchNorm's
statistics; here only the one at `w` does.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.sam import SharpnessAware


@dataclass(frozen=True, kw_only=True)
class FedSAM(SharpnessAware, FedAvg):
    """FedAvg with gradients at the ascended point.

    Args:
        rho: ρ, the length of the ascent step; 0 is FedAvg.
    """

    name: ClassVar[str] = "fedsam"
