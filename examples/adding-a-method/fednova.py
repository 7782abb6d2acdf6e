"""FedNova: average the clients' directions, not their distances, so that long paths do not count twice.

Wang, Liu, Liang, Joshi, Poor. Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization. NeurIPS 2020.

    x⁺ = x + τ · Σ_k p_k (w_k − x)/a_k        τ = Σ_k p_k a_k, with a_k the length of client k's path: lr · steps
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.core.method import Method, mean_weights
from fedwcm.core.optimizer_rule import OptimizerRule
from fedwcm.core.types import Cohort, Floats, State


@dataclass(frozen=True, kw_only=True)
class FedNova(Method):
    """FedAvg with normalised increments; nothing else changes, so nothing else is written."""

    name: ClassVar[str] = "fednova"
    optimizers: ClassVar[OptimizerRule] = OptimizerRule(
        "momentum", "Adam's steps have no path length to divide by"
    )

    def weights(self, s: State, cohort: Cohort) -> Floats:
        p = mean_weights(self.average, cohort)
        return p / cohort.path * float(p @ cohort.path)
