"""FedETF: the classifier is a fixed simplex frame, and only the features are learned.

Li, Shang, He, Lin, Wu. No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning with Synthetic
and Fixed Classifier. ICCV 2023. Sources: ZexiLee/ICCV-2023-FedETF (the authors' code).

    W = a simplex equiangular tight frame: unit rows, each pair at the cosine −1/(C − 1);    b = 0
    w ← w − lr · g(w), except for W and b                       each local step
    x ← x + server_lr · Σ_k p_k (w_k − x)                       as FedAvg

All clients pull the features of a class towards the same row, whatever their data. The paper's loss is balanced
softmax on normalised features: the recipe `fedetf` adds `prior_ce` with the client's own prior and a scale of 10.

With fewer than C − 1 features there is no such frame, and the rows are only spread as far as possible. Departures:
the authors add a projection before the frame and learn the scale of the logits; here the model's own features are
used and the scale is an option of the loss. Their last stage, fine-tuning of personal models, is left out. Weight
decay shrinks W within a round, equally for all classes; the next round starts from the frame again.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedwcm.core.frames import simplex
from fedwcm.core.method import StartingModel
from fedwcm.core.types import Context, GradientOracle, Layout, Report, State, Vec
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.head import head_of, with_head


@dataclass(frozen=True, kw_only=True)
class FedETF(StartingModel, FedAvg):
    """FedAvg with a fixed simplex frame as classifier."""

    name: ClassVar[str] = "fedetf"

    def starting_model(self, x: Vec, layout: Layout) -> Vec:
        head, width = head_of(x, layout)
        frame = torch.as_tensor(simplex(len(head), width)).to(x)
        fixed = torch.cat([frame, torch.zeros_like(head[:, width:])], dim=-1)
        return with_head(x, layout.head_slices[0].start, fixed, width)

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        return without_head(grad(w), ctx.layout), c

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        upload, report, c = super().finish(w, c, ctx)
        return {**upload, "delta": without_head(upload["delta"], ctx.layout)}, report, c


def without_head(v: Vec, layout: Layout) -> Vec:
    """Set the head's part of vectors `(K, P)` to 0, in place."""
    for part in layout.head_slices:
        v[..., part.start : part.stop] = 0.0
    return v
