"""FedLESAM-S: SCAFFOLD with the gradient taken at the estimated global ascent.

Fan, Hu, Yao, Niu, Zhang, Sugiyama, Wang. Locally Estimated Global Perturbations are Better than Local
Perturbations for Federated Sharpness-aware Minimization. ICML 2024. (Read: the abstract; the authors' code,
MediaBrain-SJTU/FedLESAM.)

    v = g(w + e) − c_k + c                       direction of each local step, e as FedLESAM (`fedlesam.py`)
    c_k⁺, c⁺, x⁺                                 as SCAFFOLD (`scaffold.py`)

rho = 0 is SCAFFOLD. Departure: the authors' code multiplies c − c_k by the coefficient of an unrelated penalty,
0.1, while it measures c_k at full strength; the correction then cancels a tenth of the drift. Here it is whole.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedwcm.methods.fedlesam import FedLESAM
from fedwcm.methods.scaffold import SCAFFOLD


@dataclass(frozen=True, kw_only=True)
class FedLESAMS(FedLESAM, SCAFFOLD):
    """SCAFFOLD with gradients at the estimated global ascent.

    Args:
        average: the objective, as SCAFFOLD has it; said again, or FedLESAM's default would come before its own.
    """

    name: ClassVar[str] = "fedlesam-s"

    average: Literal["samples", "uniform"] = "uniform"
