"""FedYogi: FedAdam whose mean square moves by steps of a bounded size, so that it cannot forget at once.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan. Adaptive Federated Optimization. ICLR 2021.

    v ← v − (1 − beta2) · d² · sign(v − d²)        the rest is FedAdam's
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.core.types import Cohort, State, Uploads, Vec
from fedwcm.methods.fedadam import FedAdam


@dataclass(frozen=True, kw_only=True)
class FedYogi(FedAdam):
    """FedAdam with Yogi's mean square; nothing else changes, so nothing else is written."""

    name: ClassVar[str] = "fedyogi"

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        delta = uploads.sum("delta", self.weights(s, cohort))
        mean = self.beta1 * s["mean"] + (1.0 - self.beta1) * delta
        d2, v = delta.square(), s["square"]
        square = v - (1.0 - self.beta2) * d2 * (v - d2).sign()
        return x + self.server_lr * mean / (square.sqrt() + self.epsilon), {"mean": mean, "square": square}
