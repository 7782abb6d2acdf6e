"""FedNCM: FedAvg evaluated by the nearest class mean of the clients' features.

Legate, Bernier, Caccia, Oyallon, Belilovsky. Guiding The Last Layer in Federated Learning with Pre-Trained Models.
NeurIPS 2023. Sources: GwenLegate/GuidingLastLayerFLPretrain (the authors' code).

    μ_c = Σ_k Σ_{i of class c} f(i) / Σ_k n_kc             f(i): the features of sample i at the received model
    W_c = μ_c / ‖μ_c‖,    b = 0                            so that the nearest mean by cosine is predicted

Every class has one mean, however rare it is, and the head needs no training: a strong start on features of a
pre-trained model, and the only step if that is frozen (`memory=1`). Clients upload class sums and counts, C(d + 1)
numbers; the server sees only their sums. A class without samples so far is never predicted before another.

Departures: the authors compute the head once, then train it; here every round has one, and FedAvg trains beside
it.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor
from torch.nn.functional import normalize, pad

from fedwcm.core.types import Context, State
from fedwcm.methods.closed_form import FeatureSums


@dataclass(frozen=True, kw_only=True)
class FedNCM(FeatureSums):
    """FedAvg evaluated with class means as classifier."""

    name: ClassVar[str] = "fedncm"
    sum_keys: ClassVar[tuple[str, ...]] = ("features", "counts")

    def batch_sums(self, inputs: Tensor, members: Tensor, ctx: Context) -> State:
        return {"features": members.mT @ inputs, "counts": members.sum(dim=1)}

    def computed_head(self, sums: State, head: Tensor, width: int, rng: np.random.Generator) -> Tensor:
        means = sums["features"][:, :width] / sums["counts"].clamp(min=1.0)[:, None]
        return pad(normalize(means, dim=-1), (0, head.shape[1] - width))
