"""FedAvg-M: FedCM whose server steps along the momentum itself, with a rate of its own.

Cheng, Huang, Wu, Yuan. Momentum Benefits Non-IID Federated Learning Simply and Provably. ICLR 2024. (Read: the
abstract; its public reviews, which state the server's step and that the client's is FedCM's; FedWCM's account of
its theorem.)

    v = α g + (1 − α) m                         direction of each local step (the paper's β is this α)
    m⁺ = Σ_k p_k (x − w_k) / (lr B_k)           a gradient, whatever the clients' rates and steps
    x⁺ = x − γ m⁺                               γ is `server_lr`

γ is the step of a gradient method and does not shrink with the local rate. With γ = lr·B it is FedCM where all
clients take B steps, and with α = 1 FedAvg; where they take unequal numbers, every client weighs the same here,
and in FedCM those with more steps weigh more. m₀ = 0. Not to be confused with `fedavgm` (Hsu et al. 2019), whose
momentum stays on the server.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedwcm.methods.fedcm import FedCM


@dataclass(frozen=True, kw_only=True)
class FedAvgMCheng(FedCM):
    """FedCM with the literal server step.

    Args:
        server_lr: γ, the server's step along the momentum.
        server_step: `literal` is the method; `average` turns it back into FedCM.
    """

    name: ClassVar[str] = "fedavg-m"

    server_step: Literal["average", "literal"] = "literal"
