"""FedWCM-X: FedWCM for clients of unequal size (Algorithm 2).

Li, Huang, Jiang, Xie, Liu, Du, Wang, Wu. FedWCM: Unleashing the Potential of Momentum-based Federated
Learning in Long-Tailed Scenarios. ICPP 2025. (Read: the paper.)

    lr_k = lr · B̂ / B_k            B̂ = E·⌈n̄/b⌉, the steps of a client of mean size
    w'_k ∝ w_k · n_k               renormalised to sum to 1; `normalize=false` is the text, w_k n_k / Σ n_j

Every client's path then has the length lr·B̂, and with `momentum_norm="exact"` the normaliser is the
1/(η_l B̂) of the algorithm box and the gain exactly 1 − α. The printed weights sum to about 1/m for m clients,
which shrinks the step by the number of clients sampled.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.core.method import mean_weights
from fedwcm.core.types import Cohort, Context, Floats, Ints, Population, State
from fedwcm.methods.wcm import WCM


@dataclass(frozen=True, kw_only=True)
class FedWCMX(WCM):
    """FedWCM with sample weights and rates scaled to a common path length.

    Args:
        normalize: let the weights sum to 1; `false` is the printed text.
    """

    name: ClassVar[str] = "fedwcm-x"

    normalize: bool = True

    def starting_gain(self, population: Population, samples: Ints) -> float | None:
        if self.momentum_norm == "exact":
            return 1.0 - self.alpha
        return (1.0 - self.alpha) * population.reference_steps / population.nominal_steps

    def local_lr(self, ctx: Context) -> Floats:
        return ctx.learning_rates * ctx.population.reference_steps / ctx.clients.steps

    def weights(self, s: State, cohort: Cohort) -> Floats:
        share = mean_weights("samples", cohort)
        if not self.weighting:
            return share
        weights = super().weights(s, cohort) * share
        return weights / weights.sum() if self.normalize else weights
