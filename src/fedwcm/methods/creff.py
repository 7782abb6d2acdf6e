"""CReFF: FedAvg with a classifier re-trained on synthetic features whose gradients match the clients'.

Shang, Lu, Huang, Wang. Federated Learning on Heterogeneous and Long-Tailed Data via Classifier Re-Training with
Federated Features. IJCAI 2022. Sources: shangxinyi/CReFF-FL (the authors' code).

h is the re-trained head (in the first round the randomly initialised head of x), f(·) the features from the
backbone of x, F_c the `features` federated features of class c, initially N(0, 1) and kept between rounds:

    g_kc = mean over client k's samples i of class c of ∂CE(h(f(i)), c)/∂h        uploaded before training
    ḡ_c  = mean of g_kc over the clients of the round that have class c
    F   ← F − feature_lr · ∂/∂F Σ_c D(∂CE(h(F_c), c)/∂h, ḡ_c)                     `match_steps` times
    D(a, b) = Σ over rows of W of (1 − cos(a_row, b_row)) + (1 − cos(a_bias, b_bias))
    h⁺  = a new linear head, trained by `retrain_epochs` of SGD on all of F

The model being trained is FedAvg's, including its head. What is evaluated and exported is its backbone with h⁺.
The features of a class that no client of the round has stay unchanged. Clients send g_kc, and a 1 for each class
that they have; the server sees only sums over clients.

The server computes C·`features`·(`match_steps` + `retrain_epochs`) small products per round. A tenth of the
`retrain_epochs` with ten times the `retrain_lr` gives nearly the same result in a tenth of the time.

Departures: the authors' code estimates each g_kc from ten draws of at most 32 images, augmented at random with a
seed from the clock; here it is the exact mean over the samples without augmentation. Their code adds 1e-6 to the
product of the norms in a cosine, which distorts it for well-fitted rows with tiny gradients; here a norm is only
kept from being zero. With BatchNorm, their code computes f with the running statistics, here with those of the
client's own data.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, one_hot, pad, softmax

from fedwcm.core.batch import Batch, LocalData, Outputs
from fedwcm.core.method import TwoPhase
from fedwcm.core.ranges import Count, Positive
from fedwcm.core.types import Cohort, Context, Layout, State, Uploads, Vec
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.head import NO_HEAD, head_of, train_head, with_head


@dataclass(frozen=True, kw_only=True)
class CReFF(TwoPhase, FedAvg):
    """FedAvg with a head re-trained on federated features.

    Args:
        features: number of federated features per class.
        feature_lr: learning rate of the federated features.
        match_steps: optimisation steps of the federated features per round.
        retrain_epochs: passes over the federated features that train the head.
        retrain_lr: learning rate of the head.
        retrain_batch: federated features per mini-batch.
    """

    name: ClassVar[str] = "creff"
    replaces_head: ClassVar[bool] = True
    discloses: ClassVar[str] = "which classes they have"

    features: Count = 100
    feature_lr: Positive = 0.1
    match_steps: Count = 100
    retrain_epochs: Count = 300
    retrain_lr: Positive = 0.01
    retrain_batch: Count = 32

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
        ones = np.ones(len(cohort))
        return {**s, **{key: uploads.sum(key, ones) for key in ("gradients", "holders")}}

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        rng = torch.Generator().manual_seed(int(cohort.rng.integers(2**63)))
        probed = {key: s[key] for key in ("gradients", "holders")}
        s = {key: value for key, value in s.items() if key not in probed}
        s = s if "head" in s else self.first_state(x, s, cohort.layout, rng)
        features = self.match_features(s, probed)
        head = self.retrain_head(features, s["head"].shape[-1], rng)
        x, s = super().update(x, s, uploads, cohort)
        return x, {**s, "features": features, "head": head}

    def eval_params(self, x: Vec, s: State) -> Vec:
        if "head" not in s:
            return x
        return with_head(x, int(s["head_start"]), s["head"], s["features"].shape[-1])

    def first_state(self, x: Vec, s: State, layout: Layout, rng: torch.Generator) -> State:
        """Return the state with the head of `x`, its position in `x`, and random features."""
        head, width = head_of(x, layout)
        features = torch.randn(len(head), self.features, width, generator=rng, dtype=x.dtype).to(x.device)
        return {**s, "head": head, "head_start": torch.tensor(layout.head_slices[0].start), "features": features}

    def feature_loss(self, features: Tensor, s: State, probed: State) -> Tensor:
        """Return the loss that the federated features `(C, features, d)` minimise: Σ_c D."""
        # Sums instead of means: D depends on directions only.
        real = probed["gradients"][..., : s["head"].shape[-1]]
        distances = gradient_distances(class_gradients(features, s["head"]), real, features.shape[-1])
        return torch.where(probed["holders"] > 0, distances, 0.0).sum()

    def match_features(self, s: State, probed: State) -> Tensor:
        """Return the federated features after this round's steps."""
        features = s["features"]
        for _ in range(self.match_steps):
            leaf = features.detach().requires_grad_()
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(self.feature_loss(leaf, s, probed), leaf)
            features = torch.add(features, gradient, alpha=-self.feature_lr)
        return features

    def retrain_head(self, features: Tensor, width: int, rng: torch.Generator) -> Tensor:
        """Return a new head `(C, width)`, trained on the federated features `(C, features, d)`."""
        classes, each, d = features.shape
        inputs = pad(features.reshape(-1, d), (0, width - d), value=1.0)
        targets = torch.eye(classes, dtype=inputs.dtype, device=inputs.device).repeat_interleave(each, dim=0)
        start = torch.rand(classes, width, generator=rng, dtype=inputs.dtype).to(inputs.device)
        head = (2.0 * start - 1.0) / math.sqrt(d)
        passes = self.retrain_epochs, self.retrain_batch, self.retrain_lr
        return train_head(head, inputs, targets, *passes, rng)


def gradient_sums(outputs: Outputs, batch: Batch, head: Tensor | None) -> Tensor:
    """Return Σ over the samples of each class of ∂CE/∂head, `(K, C, C, d + 1)`; the last column is the bias.

    Without a head, the gradient is that of the head of the model that produced the outputs.
    """
    if not outputs.features.numel():
        raise ValueError(NO_HEAD)
    inputs = pad(outputs.features, (0, 1), value=1.0)
    logits = outputs.logits if head is None else inputs[..., : head.shape[-1]] @ head.T
    target = one_hot(batch.labels, logits.shape[-1]).to(logits.dtype)
    by_logits = softmax(logits, dim=-1) - target
    members = target if batch.weight is None else target * batch.weight[..., None]
    return torch.stack([(member[..., None] * by_logits).mT @ inputs for member in members.unbind(dim=-1)], dim=1)


def class_gradients(features: Tensor, head: Tensor) -> Tensor:
    """Return the differentiable ∂CE/∂head for each class's federated features `(C, n, d)`."""
    inputs = pad(features, (0, head.shape[-1] - features.shape[-1]), value=1.0)
    target = torch.eye(len(features), dtype=features.dtype, device=features.device)[:, None]
    by_logits = softmax(inputs @ head.T, dim=-1) - target
    return by_logits.mT @ inputs / features.shape[1]


def gradient_distances(ours: Tensor, real: Tensor, d: int) -> Tensor:
    """Return D of each class, `(C,)`: cosine distances of the weight's rows, and of the bias as a whole."""
    rows = 1.0 - cosine_similarity(ours[..., :d], real[..., :d], dim=-1)
    if ours.shape[-1] == d:
        return rows.sum(dim=-1)
    return rows.sum(dim=-1) + 1.0 - cosine_similarity(ours[..., d], real[..., d], dim=-1)
