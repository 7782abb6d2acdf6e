"""FedBuff: late answers are used, and count less the older the model is that they started from.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba. Federated Learning with Buffered Asynchronous Aggregation.
AISTATS 2022.

    x ← x + server_lr · Σ_k (1 + τ_k)^(−`power`) Δ_k / |S|,    Δ_k = w_k − x_(t − τ_k)

τ_k is the age of the model that client k received, in rounds. Which answers are late is the simulated clock's
business: `participation.speeds`, `participation.deadline` and `participation.staleness`. Without it, or with power
0, this is FedAvg with equal weights. A late answer makes the step shorter, not only its own share smaller.

Departures: the paper's server steps when its buffer holds K answers. Here a round is a span of the clock, the
deadline, and its buffer is what arrives within it.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedwcm.core.ranges import NonNegative
from fedwcm.core.types import Cohort, Floats, State
from fedwcm.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedBuff(FedAvg):
    """FedAvg whose late answers count less.

    Args:
        power: how fast the weight of an answer falls with its age; 0 for not at all.
    """

    name: ClassVar[str] = "fedbuff"

    average: Literal["samples", "uniform"] = "uniform"
    power: NonNegative = 0.5

    def weights(self, s: State, cohort: Cohort) -> Floats:
        aged: Floats = (1.0 + cohort.staleness.astype(np.float64)) ** -self.power
        return super().weights(s, cohort) * aged
