"""Fed3R: FedAvg evaluated with a classifier in closed form, ridge regression on the clients' features.

Fanì, Camoriano, Caputo, Ciccone. Accelerating Heterogeneous Federated Learning with Closed-form Classifiers. ICML
2024. Sources: fedrr/fed3r (the authors' code).

    A = Σ v_y f fᵀ,   B = Σ v_y e_y fᵀ                     over all samples (f, y), with a 1 in f for the bias
    (W, b) = B (A + ridge · I)⁻¹                            e_y: the one-hot vector of y

The sums of all clients give the head of central training, whatever each of them has: nothing is lost to
heterogeneity. On a frozen pre-trained model, one upload of d(d + C) numbers per client is all there is to do
(`memory=1`). The server sees only sums, which encryption can add.

v_y = 1 is the paper. `balanced` weights each class by the inverse of its share in the gathered distribution, so
that a rare class counts as much as another. Departures: the paper's random features are left out; FedAvg trains
beside it. Scores are regressions of 0 and 1, so that accuracies are meant, not probabilities.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from fedwcm.balance import ABSENT
from fedwcm.core.ranges import Positive
from fedwcm.core.types import Context, State
from fedwcm.methods.closed_form import FeatureSums, solve


@dataclass(frozen=True, kw_only=True)
class Fed3R(FeatureSums):
    """FedAvg evaluated with a ridge regression as classifier.

    Args:
        ridge: regularisation, added to the diagonal of the sums.
        balanced: whether classes count equally, not by their samples.
    """

    name: ClassVar[str] = "fed3r"
    sum_keys: ClassVar[tuple[str, ...]] = ("gram", "targets")

    ridge: Positive = 0.01
    balanced: bool = True

    def batch_sums(self, inputs: Tensor, members: Tensor, ctx: Context) -> State:
        members = members * ctx.constant(("fed3r", self), lambda: self._class_weights(ctx))
        weighted = inputs * members.sum(dim=-1, keepdim=True)
        return {"gram": weighted.mT @ inputs, "targets": members.mT @ inputs}

    def computed_head(self, sums: State, head: Tensor, width: int, rng: np.random.Generator) -> Tensor:
        return solve(sums["gram"], sums["targets"], self.ridge)

    def _class_weights(self, ctx: Context) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        prior = ctx.population.prior
        if not self.balanced:
            return np.ones(len(prior))
        least = ABSENT / (ctx.population.clients * ctx.population.mean_samples)
        return 1.0 / (len(prior) * np.maximum(prior, least))
