"""FedAvg-M: FedCM with a server that steps along the momentum itself, at its own learning rate.

Cheng, Huang, Wu, Yuan. Momentum Benefits Non-IID Federated Learning Simply and Provably. ICLR 2024. Sources: its
public reviews on OpenReview, which state the server's step and that the client's is FedCM's; the FedWCM paper.

    v = α g + (1 − α) m                         direction of each local step (the paper's β is this α)
    m⁺ = Σ_k p_k (x − w_k) / (lr B_k)           a gradient, whatever the clients' rates and steps
    x⁺ = x − γ m⁺                               γ is `server_lr`

γ is the step size of a gradient method and does not shrink with the local rate. If all clients take B steps,
γ = lr·B is FedCM, and with α = 1 also FedAvg. If they take different numbers of steps, all clients have the same
weight here, whereas in FedCM clients with more steps weigh more. m₀ = 0. Not to be confused with `fedavgm` (Hsu et
al. 2019), whose momentum stays on the server.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedwcm.methods.fedcm import FedCM


@dataclass(frozen=True, kw_only=True)
class FedAvgMCheng(FedCM):
    """FedCM with the literal server step.

    Args:
        server_lr: γ, the server's step size along the momentum.
        server_step: `literal` is this method; `average` is FedCM.
    """

    name: ClassVar[str] = "fedavg-cheng"

    server_step: Literal["average", "literal"] = "literal"
