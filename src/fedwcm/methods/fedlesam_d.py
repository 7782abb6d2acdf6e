"""FedLESAM-D: FedDyn with the gradient taken at the estimated global ascent.

Fan, Hu, Yao, Niu, Zhang, Sugiyama, Wang. Locally Estimated Global Perturbations are Better than Local
Perturbations for Federated Sharpness-aware Minimization. ICML 2024. Sources: MediaBrain-SJTU/FedLESAM (the
authors' code).

    v = g(w + e) + λ (h_k + w − x)               direction of each local step, e as FedLESAM (`fedlesam.py`)
    h_k⁺, x⁺                                     as FedDyn (`feddyn.py`)

e points along the difference of the global models as they were sent, with the dual included. rho = 0 is FedDyn.
Departures: none beyond those of the two files.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.methods.feddyn import FedDyn
from fedwcm.methods.fedlesam import LESAM


@dataclass(frozen=True, kw_only=True)
class FedLESAMD(LESAM, FedDyn):
    """FedDyn with gradients at the estimated global ascent."""

    name: ClassVar[str] = "fedlesam-d"
