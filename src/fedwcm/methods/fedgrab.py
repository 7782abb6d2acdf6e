"""Fed-GraB's server: FedAvg that guesses from the classifier which classes are rare.

Xiao, Chen, Liu, Wang, Feng, Hao, Zhou, Wu, Yang, Liu. Fed-GraB: Federated Long-tailed Learning with
Self-Adjusting Gradient Balancer. NeurIPS 2023. (Read: the abstract, this project's notes and the authors'
public code, ZackZikaiXiao/FedGraB.)

The Direct Prior Analyzer, after each round, with W_c the row of class c in the global classifier:

    a_c = ‖W_c‖ − min_j ‖W_j‖,   share_c = a_c / Σ_j a_j           even if all rows have the same length
    π   = mean of the shares over the rounds so far
    tail = the classes behind those that hold the share `head_share` of π, from the most frequent down

It is sent with the model (`tail`, one number a class): the objective `grab` opens the controllers of these
classes only. Before the first estimate all are closed. No class counts leave the clients.

`--method fedgrab` is this method with that objective; `method.name = "fedgrab"` in a file needs
`loss.name = "grab"` beside it, and with any other loss it is FedAvg. Departures: that code standardises the
norms before it subtracts the least, which cancels out; it makes every client take part, which nothing here
needs. head_share = 0 declares all classes tail, as its script does. Take the guess for what it is: in the first
rounds the lengths of the rows say more of their initialisation than of the data.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedwcm.core.checks import require
from fedwcm.core.layout import Layout
from fedwcm.core.mixins import RoundMetrics
from fedwcm.core.types import Cohort, Population, State, Uploads, Vec
from fedwcm.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedGraB(RoundMetrics, FedAvg):
    """FedAvg with the Direct Prior Analyzer.

    Args:
        head_share: share of the data in the classes that are not tail; 0 declares all classes tail.
    """

    name: ClassVar[str] = "fedgrab"

    head_share: float = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.head_share <= 1, "head_share", self.head_share, "in [0, 1]")

    def init(self, x: Vec, population: Population) -> State:
        return {"shares": x.new_zeros(population.classes), "estimates": x.new_zeros(())}

    def broadcast(self, s: State) -> State:
        return {"tail": self.tail(s["shares"])}

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        x, s = super().update(x, s, uploads, cohort)
        estimates = s["estimates"] + 1
        shares = torch.lerp(s["shares"], class_shares(x, cohort.layout), 1 / estimates)
        return x, {"shares": shares, "estimates": estimates}

    def metrics(self, s: State, cohort: Cohort) -> dict[str, float]:
        return {"tail_classes": float(self.broadcast(s)["tail"].sum())}

    def tail(self, shares: Vec) -> Vec:
        """1 for the classes behind those that hold the share `head_share`, 0 for these."""
        descending, order = shares.sort(descending=True, stable=True)
        in_front = descending.cumsum(dim=0) - descending
        return torch.zeros_like(shares).scatter(0, order, (in_front >= self.head_share).to(shares.dtype))


def class_shares(x: Vec, layout: Layout) -> Vec:
    """How the data is spread over the classes, guessed from the lengths of the classifier's rows."""
    weight = next((part for part in layout.head_slices if len(part.shape) == 2), None)
    if weight is None:
        raise ValueError("method fedgrab needs a model whose final linear layer is trained")
    norms = torch.linalg.vector_norm(x[weight.start : weight.stop].view(weight.shape), dim=-1)
    above = norms - norms.min()
    total = above.sum()
    return above / total if total > 0 else torch.full_like(above, 1 / len(above))
