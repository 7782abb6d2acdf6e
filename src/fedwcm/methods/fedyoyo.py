"""FedYoYo's server: the class distribution in the loss comes from effective class sizes, measured in every round.

Yan, Li, Wu, Pang, Lu, Yan, Wang. You Are Your Own Best Teacher: Achieving Centralized-level Performance in
Federated Learning under Heterogeneous and Long-tailed Data. ICCV 2025. Sources: shanss132/FedYoYo (the authors'
code).

In a first phase, clients centre their features at the received model on their own class means, and add up over
groups of `group` samples, for each class c with n samples in a group,

    e_c = min(n, 1 / ‖mean of f/‖f‖‖²)                    samples that point the same way count once
    E   ← memory · E + (1 − memory) · (1 + Σ_k e_k)       E / Σ E is the class distribution that is sent;
                                                          the first sizes stand without memory, as in their code

`--method fedyoyo` selects this method with the loss `fedyoyo`, which uses it. Clients upload C numbers more; the
server sees only sums.

Departures: e_c is at most n. Centring makes two samples of a class exact opposites, which would count as a
million; the authors' server removes such outliers instead. They shuffle before they form groups, here samples are
in order.
**Trap:** the accuracy reported in their code is the best over the rounds, on test data.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedwcm.core.batch import LocalData
from fedwcm.core.method import TwoPhase
from fedwcm.core.ranges import BelowOne, Count
from fedwcm.core.types import Cohort, Context, Population, State, Uploads, Vec
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.head import features_of


@dataclass(frozen=True, kw_only=True)
class FedYoYo(TwoPhase, FedAvg):
    """FedAvg that sends a class distribution of effective sizes.

    Args:
        group: samples among which repetition is looked for: the authors' batch size.
        memory: share of the sizes so far that stays when a round's are added.
    """

    name: ClassVar[str] = "fedyoyo"
    discloses: ClassVar[str] = "how many different samples of each class they have"

    group: Count = 32
    memory: BelowOne = 0.9

    def init(self, x: Vec, population: Population) -> State:
        return {"effective": x.new_zeros(population.classes)}

    def probe(self, local: LocalData, ctx: Context) -> State:
        parts = list(features_of(local, ctx))
        counts = torch.stack([members.sum(dim=1) for _, members in parts]).sum(dim=0)
        sums = torch.stack([members.mT @ features for features, members in parts]).sum(dim=0)
        means = sums / counts.clamp(min=1.0)[..., None]
        sizes = torch.zeros_like(counts)
        for features, members in parts:
            units = normalize(features - members @ means, dim=-1)
            for unit, own in zip(units.split(self.group, dim=1), members.split(self.group, dim=1), strict=True):
                sizes += effective_sizes(unit, own)
        return {"effective": sizes}

    def after_probe(self, s: State, uploads: Uploads, cohort: Cohort) -> State:
        sizes = 1.0 + uploads.sum("effective", np.ones(len(cohort)))
        if s["effective"].any():
            sizes = self.memory * s["effective"] + (1.0 - self.memory) * sizes
        return {**s, "effective": sizes}

    def broadcast(self, s: State) -> State:
        return {"shares": s["effective"] / s["effective"].sum()}


def effective_sizes(units: Tensor, members: Tensor) -> Tensor:
    """Return how many different samples each class has, `(K, C)`, given unit features and who has which class."""
    counts = members.sum(dim=1)
    means = members.mT @ units / counts.clamp(min=1.0)[..., None]
    return counts.minimum(1.0 / means.square().sum(dim=-1))
