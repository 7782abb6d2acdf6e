"""FedNova: average the clients' directions, not their distances, so that long paths do not count twice.

Wang, Liu, Liang, Joshi, Poor. Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization. NeurIPS 2020.

    x⁺ = x + τ · Σ_k p_k (w_k − x)/B_k        τ = Σ_k p_k B_k, with B_k the steps of client k
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.core.method import Method, mean_weights
from fedwcm.core.types import Cohort, Floats, State


@dataclass(frozen=True, kw_only=True)
class FedNova(Method):
    """FedAvg with normalised increments; nothing else changes, so nothing else is written."""

    name: ClassVar[str] = "fednova"

    def weights(self, s: State, cohort: Cohort) -> Floats:
        p = mean_weights(self.average, cohort)
        return p / cohort.steps * float(p @ cohort.steps)
