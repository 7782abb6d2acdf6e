"""FedReLa's server: FedAvg that keeps one late model, by which clients change labels, and then trains more slowly.

Hu, Menéndez, Liu, Gong, Wang, Peng. FedReLa: Imbalanced Federated Learning via Re-Labeling. ICML 2026. Sources:
guangzhengh/FedReLa (the authors' code).

    from the share `start` of the rounds on, the model at that time is sent next to x
    lr ← lr · slowdown                                     from then on

Without an answer in the round before, both begin after the next round with one.

`--method fedrela` selects this method with the loss `fedrela`, which changes the labels; in a configuration file,
`method.name = "fedrela"` needs `loss.name = "fedrela"` next to it. Sending the model costs P more per client and
round, and spares clients from keeping labels between rounds.

**Traps:** the authors' code stops early on test accuracy, which is not done here; and the slower learning rate is
part of the gain, so compare with `fedavg` under a schedule that also slows down. They start at 80 to 90 % of the
rounds.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from fedwcm.core.method import LocalRates
from fedwcm.core.ranges import Positive, Share
from fedwcm.core.types import Cohort, Context, Floats, Population, State, Uploads, Vec
from fedwcm.methods.fedavg import FedAvg

ROUNDING = 1e-9
"""Subtracted from a product of a share and a number of rounds, so that 0.55 of 100 is not above 55."""


@dataclass(frozen=True, kw_only=True)
class FedReLa(LocalRates, FedAvg):
    """FedAvg with a late model for relabelling, and slower steps from then on.

    Args:
        start: share of the rounds after which labels are changed.
        slowdown: factor on the local learning rate from then on.
    """

    name: ClassVar[str] = "fedrela"

    start: Share = 0.8
    slowdown: Positive = 0.1

    @property
    def depends_on_rounds(self) -> bool:
        return True

    def first_round(self, population: Population) -> int:
        """Return the index of the first round with changed labels."""
        return math.ceil(self.start * population.rounds - ROUNDING)

    def init(self, x: Vec, population: Population) -> State:
        return {"labeller": x.clone(), "relabels": torch.tensor(self.first_round(population) == 0)}

    def broadcast(self, s: State) -> State:
        return {"labeller": s["labeller"]} if s["relabels"] else {}

    def local_lr(self, ctx: Context) -> Floats:
        return np.asarray(ctx.learning_rates * (self.slowdown if "labeller" in ctx.message else 1.0))

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        x, s = super().update(x, s, uploads, cohort)
        if s["relabels"]:
            return x, s
        due = cohort.round + 1 >= self.first_round(cohort.population)
        return x, {**s, "labeller": x.clone(), "relabels": torch.tensor(due)}
