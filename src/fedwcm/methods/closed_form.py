"""Heads computed from sums of the clients' features: what their methods share.

In a first phase, clients send sums over their samples at the received model x; the server adds them up and derives
a head. The model to evaluate is that x with that head, so that both fit together; it is one round older than the
model that trains on. The server sees only sums, which encryption and secure aggregation can add.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fedwcm.core.batch import LocalData
from fedwcm.core.method import TwoPhase
from fedwcm.core.ranges import Share
from fedwcm.core.types import Cohort, Context, State, Uploads, Vec
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.head import CLASS_COUNTS, features_of, head_of, with_head

SUM = "sum/"
"""Prefix of the sums in the server's state."""


@dataclass(frozen=True, kw_only=True)
class FeatureSums(TwoPhase, FedAvg):
    """FedAvg evaluated with a head that is computed from sums over the clients' features.

    Args:
        memory: share of the sums so far that stays when a round's are added; 0 forgets, 1 suits a frozen model.
    """

    replaces_head: ClassVar[bool] = True
    discloses: ClassVar[str] = CLASS_COUNTS

    memory: Share = 0.9

    @abstractmethod
    def batch_sums(self, inputs: Tensor, members: Tensor, ctx: Context) -> State:
        """Return sums over a batch, one row per client.

        Args:
            inputs: the features, with a 1 for the bias if the head has one: `(K, b, columns)`.
            members: 1 where a sample has a class, `(K, b, C)`; 0 for padding.
            ctx: the clients' context.
        """

    @abstractmethod
    def computed_head(self, sums: State, head: Tensor, width: int, rng: np.random.Generator) -> Tensor:
        """Return the head `(C, columns)`, given the sums over clients and the trained head."""

    def gathers(self, round_: int, rounds: int) -> bool:
        """Return whether clients send their sums in this round."""
        return True

    def probe(self, local: LocalData, ctx: Context) -> State:
        if not self.gathers(ctx.round, ctx.population.rounds):
            return {}
        sums = dict[str, Tensor]()
        for features, members in features_of(local, ctx):
            inputs = pad(features, (0, len(ctx.layout.head_slices) - 1), value=1.0)
            own = self.batch_sums(inputs, members, ctx)
            sums = {key: value + sums[key] if sums else value for key, value in own.items()}
        return sums

    def after_probe(self, s: State, uploads: Uploads, cohort: Cohort) -> State:
        if not self.gathers(cohort.round, cohort.population.rounds):
            return s
        ones = np.ones(len(cohort))
        total = {SUM + key: uploads.sum(key, ones) for key in self.sum_keys}
        return {**s, **{key: value + self.memory * s[key] if key in s else value for key, value in total.items()}}

    sum_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of the sums."""

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        x_next, s = super().update(x, s, uploads, cohort)
        if not self.gathers(cohort.round, cohort.population.rounds):
            return x_next, s
        head, width = head_of(x, cohort.layout)
        sums = {key.removeprefix(SUM): value for key, value in s.items() if key.startswith(SUM)}
        computed = self.computed_head(sums, head, width, cohort.rng).to(x)
        return x_next, {**s, "evaluated": with_head(x, cohort.layout.head_slices[0].start, computed, width)}

    def eval_params(self, x: Vec, s: State) -> Vec:
        return s.get("evaluated", x)


def solve(gram: Tensor, targets: Tensor, ridge: float) -> Tensor:
    """Return W with W (gram + ridge · I) = targets, in double precision."""
    regular = gram.double() + ridge * torch.eye(len(gram), dtype=torch.float64, device=gram.device)
    solution: Tensor = torch.linalg.solve(regular, targets.double().T).T
    return solution
