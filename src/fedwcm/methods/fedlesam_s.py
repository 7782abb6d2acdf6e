"""FedLESAM-S: SCAFFOLD with the gradient taken at the estimated global ascent.

Fan, Hu, Yao, Niu, Zhang, Sugiyama, Wang. Locally Estimated Global Perturbations are Better than Local
Perturbations for Federated Sharpness-aware Minimization. ICML 2024. Sources: MediaBrain-SJTU/FedLESAM (the
authors' code).

    v = g(w + e) − c_k + c                       direction of each local step, e as FedLESAM (`fedlesam.py`)
    c_k⁺, c⁺, x⁺                                 as SCAFFOLD (`scaffold.py`)

rho = 0 is SCAFFOLD. Departure: the authors' code multiplies c − c_k by the coefficient of an unrelated penalty,
0.1, but computes c_k without it, so that the correction cancels only a tenth of the drift. Here it is not scaled.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.methods.fedlesam import LESAM
from fedwcm.methods.scaffold import SCAFFOLD


@dataclass(frozen=True, kw_only=True)
class FedLESAMS(LESAM, SCAFFOLD):
    """SCAFFOLD with gradients at the estimated global ascent."""

    name: ClassVar[str] = "fedlesam-s"
