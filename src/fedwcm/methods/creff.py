"""CReFF: FedAvg whose classifier is re-trained on made-up features that pull it as the clients' data would.

Shang, Lu, Huang, Wang. Federated Learning on Heterogeneous and Long-Tailed Data via Classifier Re-Training with
Federated Features. IJCAI 2022. (Read: the abstract, this project's notes and the authors' public code,
shangxinyi/CReFF-FL.)

h is the re-trained head (in the first round that of x, drawn at random), f(·) the features that the backbone of x
gives, F_c the `features` federated features of class c, N(0, 1) at first and kept over the rounds:

    g_kc = mean over client k's samples i of class c of ∂CE(h(f(i)), c)/∂h        sent up before training
    ḡ_c  = mean of g_kc over the clients of the round that have class c
    F   ← F − feature_lr · ∂/∂F Σ_c D(∂CE(h(F_c), c)/∂h, ḡ_c)                     `match_steps` times
    D(a, b) = Σ over rows of W of (1 − cos(a_row, b_row)) + (1 − cos(a_bias, b_bias))
    h⁺  = a fresh linear head, `retrain_epochs` of SGD on all of F

The model in training is FedAvg's, head and all. Evaluated, and handed over, is its backbone with h⁺. A class that
nobody had this round leaves its features as they were. Clients send g_kc, and a 1 for each class that they have:
sums over clients are all that the server sees.

The server's work is C·`features`·(`match_steps` + `retrain_epochs`) small products a round. A tenth of the
`retrain_epochs` with ten times the `retrain_lr` goes nearly the same way in a tenth of the time.

Departures. That code takes each g_kc from ten draws of at most 32 images, augmented at random with a seed from
the clock; here it is the exact mean over the samples as they are. That code adds 1e-6 to the product of the
lengths in a cosine, which is then none any more for rows that are well fitted and so have tiny gradients; here a
length is only kept off zero. With BatchNorm, that code computes f with the running statistics; here with those
of the client's own data.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, one_hot, pad, softmax

from fedwcm.core.batch import Batch, Outputs
from fedwcm.core.checks import require
from fedwcm.core.layout import Layout
from fedwcm.core.local_data import LocalData
from fedwcm.core.mixins import TwoPhase
from fedwcm.core.types import Cohort, Context, State, Uploads, Vec
from fedwcm.methods.fedavg import FedAvg

NO_HEAD = "federated features (methods creff, clip2fl) need a model with a final linear layer that is trained"


@dataclass(frozen=True, kw_only=True)
class CReFF(TwoPhase, FedAvg):
    """FedAvg with a head re-trained on federated features.

    Args:
        features: federated features of each class.
        feature_lr: step of the federated features.
        match_steps: steps of the federated features a round.
        retrain_epochs: passes over the federated features that train a head.
        retrain_lr: learning rate of the head.
        retrain_batch: federated features in a mini-batch.
    """

    name: ClassVar[str] = "creff"

    features: int = 100
    feature_lr: float = 0.1
    match_steps: int = 100
    retrain_epochs: int = 300
    retrain_lr: float = 0.01
    retrain_batch: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("features", "match_steps", "retrain_epochs", "retrain_batch"):
            require(getattr(self, field) >= 1, field, getattr(self, field), "at least 1")
        for field in ("feature_lr", "retrain_lr"):
            require(getattr(self, field) > 0, field, getattr(self, field), "positive")

    def probe_broadcast(self, s: State) -> State:
        return {"head": s["head"]} if "head" in s else {}

    def probe(self, local: LocalData, ctx: Context) -> State:
        received = ctx.x.expand(len(ctx.clients), -1)
        counts = torch.as_tensor(ctx.clients.counts, dtype=ctx.x.dtype, device=ctx.x.device)
        sums: Tensor | float = 0.0
        for batch in local.batches():
            sums = sums + gradient_sums(local.outputs(received, batch), batch, ctx.message.get("head"))
        return {"gradients": sums / counts.clamp(min=1)[..., None, None], "holders": counts.clamp(max=1)}

    def after_probe(self, s: State, uploads: Uploads, cohort: Cohort) -> State:
        everybody = np.ones(len(cohort))
        return {**s, **{key: uploads.sum(key, everybody) for key in ("gradients", "holders")}}

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        rng = torch.Generator().manual_seed(int(cohort.rng.integers(2**63)))
        probed = {key: s[key] for key in ("gradients", "holders")}
        s = {key: value for key, value in s.items() if key not in probed}
        s = s if "head" in s else self.first_state(x, s, cohort.layout, rng)
        features = self.matched(s, probed)
        head = self.retrained(features, s["head"].shape[-1], rng)
        x, s = super().update(x, s, uploads, cohort)
        return x, {**s, "features": features, "head": head}

    def eval_params(self, x: Vec, s: State) -> Vec:
        if "head" not in s:
            return x
        weight, bias = s["head"].tensor_split([s["features"].shape[-1]], dim=-1)
        head = torch.cat([weight.reshape(-1), bias.reshape(-1)])
        start = int(s["head_start"])
        return torch.cat([x[:start], head, x[start + len(head) :]])

    def first_state(self, x: Vec, s: State, layout: Layout, rng: torch.Generator) -> State:
        """The state with the head of `x`, where it stands in `x`, and random features."""
        head, width = head_of(x, layout)
        features = torch.randn(len(head), self.features, width, generator=rng, dtype=x.dtype).to(x.device)
        return {**s, "head": head, "head_start": torch.tensor(layout.head_slices[0].start), "features": features}

    def feature_loss(self, features: Tensor, s: State, probed: State) -> Tensor:
        """What the federated features `(C, features, d)` are to make small: Σ_c D."""
        real = probed["gradients"][..., : s["head"].shape[-1]]  # sums do for means: D sees directions alone
        distances = gradient_distances(class_gradients(features, s["head"]), real, features.shape[-1])
        return torch.where(probed["holders"] > 0, distances, 0.0).sum()

    def matched(self, s: State, probed: State) -> Tensor:
        """The federated features after this round's steps."""
        features = s["features"]
        for _ in range(self.match_steps):
            leaf = features.detach().requires_grad_()
            with torch.enable_grad():
                (slope,) = torch.autograd.grad(self.feature_loss(leaf, s, probed), leaf)
            features = torch.add(features, slope, alpha=-self.feature_lr)
        return features

    def retrained(self, features: Tensor, width: int, rng: torch.Generator) -> Tensor:
        """A fresh head `(C, width)`, trained on the federated features `(C, features, d)`."""
        classes, each, d = features.shape
        inputs = pad(features.reshape(-1, d), (0, width - d), value=1.0)
        targets = torch.eye(classes, dtype=inputs.dtype, device=inputs.device).repeat_interleave(each, dim=0)
        start = torch.rand(classes, width, generator=rng, dtype=inputs.dtype).to(inputs.device)
        head = (2.0 * start - 1.0) / math.sqrt(d)
        for _ in range(self.retrain_epochs):
            order = torch.randperm(len(inputs), generator=rng).to(inputs.device)
            shuffled = (torch.split(rows[order], self.retrain_batch) for rows in (inputs, targets))
            for batch, target in zip(*shuffled, strict=True):  # the gradient by hand: steps are many and tiny
                slopes = softmax(batch @ head.T, dim=-1).sub_(target)
                head.addmm_(slopes.T, batch, alpha=-self.retrain_lr / len(batch))
        return head


def head_of(x: Vec, layout: Layout) -> tuple[Tensor, int]:
    """The head in `x`, a row a class with the bias (if any) as last column, and the number of features."""
    weight, bias = f"{layout.head}.weight", f"{layout.head}.bias"
    parameters = layout.unflatten(x)
    if weight not in parameters:
        raise ValueError(NO_HEAD)
    columns = [parameters[weight], *([parameters[bias][:, None]] if bias in parameters else [])]
    return torch.cat(columns, dim=-1), columns[0].shape[-1]


def gradient_sums(outputs: Outputs, batch: Batch, head: Tensor | None) -> Tensor:
    """Σ over samples of each class of ∂CE/∂head, `(K, C, C, d + 1)`, the bias as last column, used or not.

    Without a head, that of the model that gave the outputs is meant.
    """
    if not outputs.features.numel():
        raise ValueError(NO_HEAD)
    inputs = pad(outputs.features, (0, 1), value=1.0)
    logits = outputs.logits if head is None else inputs[..., : head.shape[-1]] @ head.T
    target = one_hot(batch.labels, logits.shape[-1]).to(logits.dtype)
    slopes = softmax(logits, dim=-1) - target
    belongs = target if batch.weight is None else target * batch.weight[..., None]
    return torch.stack([(own[..., None] * slopes).mT @ inputs for own in belongs.unbind(dim=-1)], dim=1)


def class_gradients(features: Tensor, head: Tensor) -> Tensor:
    """∂CE/∂head for each class's federated features `(C, n, d)`, as a function that can be differentiated."""
    inputs = pad(features, (0, head.shape[-1] - features.shape[-1]), value=1.0)
    target = torch.eye(len(features), dtype=features.dtype, device=features.device)[:, None]
    slopes = softmax(inputs @ head.T, dim=-1) - target
    return slopes.mT @ inputs / features.shape[1]


def gradient_distances(ours: Tensor, real: Tensor, d: int) -> Tensor:
    """D of each class, `(C,)`: cosine distances of the rows of the weight, and of the bias as a whole."""
    rows = 1.0 - cosine_similarity(ours[..., :d], real[..., :d], dim=-1)
    if ours.shape[-1] == d:
        return rows.sum(dim=-1)
    return rows.sum(dim=-1) + 1.0 - cosine_similarity(ours[..., d], real[..., d], dim=-1)
