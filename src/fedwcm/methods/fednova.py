"""FedNova: average the clients' directions, not their distances, so that long local paths do not count twice.

Wang, Liu, Liang, Joshi, Poor. Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization. NeurIPS 2020. Sources: JYWa/FedNova (the authors' code).

    x ← x + server_lr · τ · Σ_k p_k (w_k − x)/a_k,        τ = Σ_k p_k a_k

a_k is the length of client k's path: its learning rate times its steps and, with local momentum, what each
direction goes on to do in later steps (the paper's ‖a_k‖₁ times the rate). Clients with equally long paths give
FedAvg. So do clients with equal learning rates and steps, whatever their data (`local.steps`).

Departures: the paper's τ for proximal local steps is not needed: no method of this
package combines both.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.core.method import OptimizerRule, mean_weights
from fedwcm.core.types import Cohort, Floats, State
from fedwcm.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedNova(FedAvg):
    """FedAvg with normalised increments."""

    name: ClassVar[str] = "fednova"
    optimizers: ClassVar[OptimizerRule] = OptimizerRule(
        "momentum", "Adam's steps have no path length to divide by"
    )

    def weights(self, s: State, cohort: Cohort) -> Floats:
        p = mean_weights(self.average, cohort)
        return cohort.limit_shares(p / cohort.path * float(p @ cohort.path))
