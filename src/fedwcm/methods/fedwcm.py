"""FedWCM: FedCM with client weights by scarcity and an adaptive alpha (Algorithm 1).

Li, Huang, Jiang, Xie, Liu, Du, Wang, Wu. FedWCM: Unleashing the Potential of Momentum-based Federated
Learning in Long-Tailed Scenarios. ICPP 2025. (Read: the paper.)

The local step and the momentum are FedCM's (`fedcm.py`), the weights w_k and α_r those of `wcm.py`; each of
the two files names the options under which the printed text runs instead. On balanced data with clients of
equal size FedWCM is FedCM.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.methods.wcm import WCM


@dataclass(frozen=True, kw_only=True)
class FedWCM(WCM):
    """FedCM with both parts of `wcm`."""

    name: ClassVar[str] = "fedwcm"
