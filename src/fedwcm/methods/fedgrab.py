"""Fed-GraB's server: FedAvg that estimates from the classifier which classes are rare.

Xiao, Chen, Liu, Wang, Feng, Hao, Zhou, Wu, Yang, Liu. Fed-GraB: Federated Long-tailed Learning with
Self-Adjusting Gradient Balancer. NeurIPS 2023. Sources: ZackZikaiXiao/FedGraB (the authors' code).

The Direct Prior Analyzer, after each round, with W_c the row of class c in the global classifier:

    a_c = ‖W_c‖ − min_j ‖W_j‖,   share_c = a_c / Σ_j a_j           uniform if all rows have the same norm
    π   = mean of the shares over the rounds so far
    tail = the classes after those that hold the share `head_share` of π, from the most frequent down

It is sent with the model (`tail`, one number per class): the loss `grab` enables the controllers of these classes
only. Before the first estimate all controllers are off. No class counts leave the clients.

`--method fedgrab` selects this method with that loss; in a configuration file, `method.name = "fedgrab"` needs
`loss.name = "grab"` next to it, and with any other loss it is FedAvg. Departures: the authors' code standardises
the norms before it subtracts the minimum, which cancels out, and requires full participation, which is not needed
here. head_share = 0 declares all classes tail, as their script does. The estimate is rough: in the first rounds
the norms of the rows depend more on their initialisation than on the data.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedwcm.core.method import RoundMetrics
from fedwcm.core.ranges import Share
from fedwcm.core.types import Cohort, Layout, Population, State, Uploads, Vec
from fedwcm.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedGraB(RoundMetrics, FedAvg):
    """FedAvg with the Direct Prior Analyzer.

    Args:
        head_share: share of the data in classes that are not tail; 0 declares all classes tail.
    """

    name: ClassVar[str] = "fedgrab"

    head_share: Share = 0.95

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
        """Return 0 for the classes that hold the share `head_share`, most frequent first, and 1 for the rest."""
        descending, order = shares.sort(descending=True, stable=True)
        in_front = descending.cumsum(dim=0) - descending
        return torch.zeros_like(shares).scatter(0, order, (in_front >= self.head_share).to(shares.dtype))


def class_shares(x: Vec, layout: Layout) -> Vec:
    """Return the class distribution as estimated from the norms of the classifier's rows."""
    weight = next((part for part in layout.head_slices if len(part.shape) == 2), None)
    if weight is None:
        raise ValueError("method fedgrab needs a model with a trainable final linear layer")
    norms = torch.linalg.vector_norm(x[weight.start : weight.stop].view(weight.shape), dim=-1)
    above = norms - norms.min()
    total = above.sum()
    return above / total if total > 0 else torch.full_like(above, 1 / len(above))
