"""MoFedSAM: FedCM with the fresh gradient taken at the ascended point.

Qu, Li, Duan, Liu, Tang, Lu. Generalized Federated Learning via Sharpness Aware Minimization. ICML 2022. Sources:
woodenchild95/FL-Simulator.

    v = α g(w + rho · g(w)/‖g(w)‖) + (1 − α) Δ            direction of each local step
    Δ⁺, x⁺                                                as FedCM (`fedcm.py`), with its normaliser

rho = 0 is FedCM; α = 1 is FedSAM. The momentum's gain is FedCM's, and so is the pitfall of dividing by E·n/b
(`momentum_norm="nominal"`), as the public code does. Departures: none with the defaults.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.methods.fedcm import FedCM
from fedwcm.methods.sam import SharpnessAware


@dataclass(frozen=True, kw_only=True)
class MoFedSAM(SharpnessAware, FedCM):
    """FedCM with gradients at the ascended point.

    Args:
        rho: ρ, the length of the ascent step; 0 is FedCM.
    """

    name: ClassVar[str] = "mofedsam"
