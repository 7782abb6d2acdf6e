"""Power-of-Choice: of some clients drawn at random, those with the largest loss train.

Cho, Wang, Joshi. Towards Understanding Biased Client Selection in Federated Learning. AISTATS 2022.

    d candidates, drawn without replacement in proportion to their samples, d = `candidates` · m
    the m of them with the largest loss train, and count equally

The loss of a client is its mean training loss when it last took part (the paper's rpow-d), which costs nothing;
a client that never did comes first. candidates = 1 draws at random. On a long tail, clients with rare classes have
large losses, and so take part more often. `participation.fraction` gives m; `participation.sampling` is refused.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from fedwcm.core.method import ClientChoice
from fedwcm.core.ranges import AtLeastOne
from fedwcm.core.types import Cohort, Ints, Population, State, Uploads, Vec
from fedwcm.methods.fedavg import FedAvg

UNKNOWN = -1.0
"""The loss of a client that has not taken part."""


@dataclass(frozen=True, kw_only=True)
class PowerOfChoice(ClientChoice, FedAvg):
    """FedAvg of clients with large losses.

    Args:
        candidates: clients drawn for each that trains; 1 draws those that train.
    """

    name: ClassVar[str] = "power-of-choice"
    reads_losses: ClassVar[bool] = True

    average: Literal["samples", "uniform"] = "uniform"
    candidates: AtLeastOne = 2.0

    def init(self, x: Vec, population: Population) -> State:
        return {"losses": x.new_full((population.clients,), UNKNOWN)}

    def choose(self, s: State, size: int, samples: Ints, rng: np.random.Generator) -> Ints:
        count = min(len(samples), round(self.candidates * size))
        drawn = rng.choice(len(samples), count, replace=False, p=samples / samples.sum())
        losses = s["losses"].cpu().numpy()[drawn]
        largest_first = np.argsort(-np.where(losses == UNKNOWN, np.inf, losses), kind="stable")
        chosen: Ints = drawn[largest_first[:size]]
        return chosen

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        x, s = super().update(x, s, uploads, cohort)
        losses = s["losses"].clone()
        told = ~np.isnan(cohort.losses)  # a client may keep its loss to itself
        ids = torch.from_numpy(cohort.ids[told]).to(losses.device)
        losses[ids] = torch.from_numpy(cohort.losses[told]).to(losses)
        return x, {**s, "losses": losses}
