"""MOON: features stay near those of the received model, and leave those of the client's last one.

Li, He, Song. Model-Contrastive Federated Learning. CVPR 2021. Sources: QinbinLi/MOON (the authors' code).

    loss = CE(z, y) + mu · (−log softmax(cos(f, f_x)/tau, cos(f, f_last)/tau)₁)

f are a sample's features under the local model, f_x under the received one, f_last under the model with which the
client ended its last round. The second term is 0 in a client's first round, as in the authors' code. mu = 0 is
cross-entropy. It goes with any method. A step takes two forward passes more, and a client keeps a model.

Departure: the authors insert a two-layer projection before the classifier; here f is the input of the model's own
classifier. Their mu is 5 for CIFAR-10 and 1 for CIFAR-100.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, softplus

from fedwcm.core.batch import Batch, LocalData, Outputs
from fedwcm.core.checks import Needs
from fedwcm.core.ranges import NonNegative, Positive
from fedwcm.core.types import Clients, Context, Population, State, Vec
from fedwcm.losses.cross_entropy import CrossEntropy


@dataclass(frozen=True, kw_only=True)
class Moon(CrossEntropy):
    """Cross-entropy with a model-contrastive term.

    Args:
        mu: weight of the contrast; 0 is cross-entropy.
        tau: temperature of the cosines.
    """

    name: ClassVar[str] = "moon"
    needs: ClassVar[Mapping[str, Needs]] = {"tau": Needs(lambda loss: loss.mu > 0, "mu > 0")}

    mu: NonNegative = 1.0
    tau: Positive = 0.5

    def init_client(self, clients: Clients, population: Population) -> State:
        if not self.mu:
            return {}
        return {"last": torch.zeros(len(clients), clients.layout.size), "trained": torch.zeros(len(clients))}

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        loss, o = super().__call__(outputs, batch, o, ctx)
        if not self.mu:
            return loss, o
        if not outputs.features.numel():
            raise ValueError("loss.name = 'moon' needs a model with a final linear layer")
        other, near = (
            cosine_similarity(outputs.features, outputs.at(model).features, dim=-1) for model in (o["last"], ctx.x)
        )
        return loss + self.mu * o["trained"] * batch.mean(softplus((other - near) / self.tau)), o

    def finish(self, w: Vec, local: LocalData, o: State, ctx: Context) -> State:
        return {"last": w.clone(), "trained": torch.ones_like(o["trained"])} if self.mu else o
