"""FedIC: the server distils a calibrated ensemble of the clients' models, on data of its own.

Shang, Lu, Cheung, Wang. FEDIC: Federated Learning on Non-IID and Long-Tailed Data via Calibrated Distillation.
ICME 2022. Sources: shangxinyi/FEDIC (the authors' code), gzhu-hcai/LongTailLib.

With z_k(i) and f_k(i) the logits and features of client k's trained model on the server's sample i, x̄ the clients'
average, and θ = (s, b, t, q, v, c) kept between rounds:

    u    = x̄ after `distill_steps` of Adam on the cross-entropy of labelled batches
    a_k  = σ(s·z_k + b) / Σ_j σ(s·z_j + b)                          a weight for each client and sample
    e    = t ⊙ Σ_k a_k z_k + q                                      a scale and a shift for each class
    γ    = σ(v · mean_k f_k + c)
    z    = γ e + (1 − γ) z_u                                        the teacher
    θ   ← `distill_steps` of Adam on the cross-entropy of z, on labelled batches
    x   ← x̄ after as many on  soft · KL(softmax(z/T) ‖ softmax(z_x/T)) + (1 − soft) · CE

In round 1, s and t are 1 and the rest is 0: the teacher is half a mean over clients, half u. For u and x, Adam
decays weights by 2e-4. The server reads every client's model. It trains on `data.server_fraction`, samples that no
client has.

Departures: the KL is on the server's own samples without their labels. The authors take another data set
(CIFAR-100 for CIFAR-10), LongTailLib all training images: those of the clients, and those cut from the tail. Their
labelled data, 100 of each class, are drawn before the tail is cut (`data.server_before_tail`): with IF 0.01 the
server has twice as many of the rarest class as all clients. By default the share is of what is left. Labelled
batches draw classes equally often, which makes no difference for the authors' data. Images are not augmented. Adam
starts anew in every round; theirs goes on with the moments of models that have been replaced. v and c begin at 0,
theirs at random. With BatchNorm, the running statistics are the clients' average; theirs are then re-estimated on
the server. Their code divides the sum of features by 8, however many clients there are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax, logsigmoid, softmax

from fedwcm.core.batch import ServerData
from fedwcm.core.method import ServerTraining
from fedwcm.core.ranges import Count, Positive, Share
from fedwcm.core.types import Cohort, Layout, State, Uploads, Vec
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.head import NO_HEAD

DECAY = 2e-4
"""Weight decay of the models that the server trains."""
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
"""Of Adam."""


@dataclass(frozen=True, kw_only=True)
class FedIC(ServerTraining, FedAvg):
    """FedAvg whose server distils a calibrated ensemble.

    Args:
        distill_steps: steps of Adam in each of the server's three parts.
        distill_lr: learning rate of these steps.
        temperature: T, of the distillation.
        soft: share of the distillation in the last loss; the rest is cross-entropy.
        labelled_batch: labelled samples per step.
        soft_batch: samples per step of the distillation.
    """

    name: ClassVar[str] = "fedic"
    reads_rows: ClassVar[bool] = True

    distill_steps: Count = 100
    distill_lr: Positive = 0.001
    temperature: Positive = 2.0
    soft: Share = 0.5
    labelled_batch: Count = 20
    soft_batch: Count = 128

    def check_model(self, layout: Layout) -> None:
        if not layout.head_slices:
            raise ValueError(NO_HEAD)

    def refine(
        self, x: Vec, x_next: Vec, s: State, uploads: Uploads, data: ServerData, cohort: Cohort
    ) -> tuple[Vec, State]:
        def by_labels(w: Vec) -> Vec:
            rows = self.draw_labelled(data.labels, cohort.rng)
            return data.gradient(w, rows, lambda logits: cross_entropy(logits, data.labels[rows]))

        votes = self.votes(x, self.descend(x_next, by_labels, DECAY), uploads, data)
        theta = self.calibrate(s.get("calibration"), votes, data.labels, cohort.rng)
        teacher = softmax(votes.teach(theta) / self.temperature, dim=-1)

        def by_both(w: Vec) -> Vec:
            size = min(self.soft_batch, len(teacher))
            rows = torch.from_numpy(cohort.rng.choice(len(teacher), size, replace=False)).to(teacher.device)
            soft = data.gradient(w, rows, lambda logits: self.distillation(logits, teacher[rows]))
            return self.soft * soft + (1.0 - self.soft) * by_labels(w)

        return self.descend(x_next, by_both, DECAY), {**s, "calibration": theta}

    def draw_labelled(self, labels: Tensor, rng: np.random.Generator) -> Tensor:
        """Return rows of a labelled batch, in which every class of the server's data is equally likely."""
        own = labels.cpu().numpy()
        shares = 1.0 / np.bincount(own)[own]
        return torch.from_numpy(rng.choice(len(own), self.labelled_batch, p=shares / shares.sum())).to(
            labels.device
        )

    def votes(self, x: Vec, tuned: Vec, uploads: Uploads, data: ServerData) -> "Votes":
        """Return what the clients' models and the tuned average say of the server's samples."""
        models = x + uploads.rows("delta")
        buffers = uploads.rows("buffers") if len(data.buffers) else models[:, :0]
        logits, features = zip(*map(data.outputs, models, buffers), strict=True)
        return Votes(torch.stack(logits), torch.stack(features).mean(dim=0), data.outputs(tuned)[0])

    def calibrate(self, theta: Vec | None, votes: "Votes", labels: Tensor, rng: np.random.Generator) -> Vec:
        """Return θ after this round's steps."""

        @torch.enable_grad()
        def by_theta(point: Vec) -> Vec:
            rows, leaf = self.draw_labelled(labels, rng), point.detach().requires_grad_()
            loss = cross_entropy(votes.of(rows).teach(leaf), labels[rows])
            return torch.autograd.grad(loss, leaf)[0]

        return self.descend(votes.start() if theta is None else theta, by_theta)

    def distillation(self, logits: Tensor, teacher: Tensor) -> Tensor:
        """Return the KL divergence of the student from the teacher's probabilities, at the temperature."""
        return kl_div(log_softmax(logits / self.temperature, dim=-1), teacher, reduction="batchmean")

    def descend(self, w: Vec, gradient: Callable[[Vec], Vec], decay: float = 0.0) -> Vec:
        """Return `w` after the steps of Adam with L2 decay."""
        mean, square = torch.zeros_like(w), torch.zeros_like(w)
        for step in range(1, self.distill_steps + 1):
            g = gradient(w).add(w, alpha=decay)
            mean, square = BETA1 * mean + (1.0 - BETA1) * g, BETA2 * square + (1.0 - BETA2) * g.square()
            scale = (square / (1.0 - BETA2**step)).sqrt() + EPSILON
            w = w - self.distill_lr / (1.0 - BETA1**step) * mean / scale
        return w


@dataclass(frozen=True, eq=False)
class Votes:
    """Logits of the clients' models `(K, n, C)`, their mean features `(n, d)`, logits of the tuned average."""

    clients: Tensor
    features: Tensor
    tuned: Tensor

    def of(self, rows: Tensor) -> "Votes":
        """Return the votes on these samples."""
        return Votes(self.clients[:, rows], self.features[rows], self.tuned[rows])

    def start(self) -> Vec:
        """Return the θ of round 1, flat."""
        classes, width = self.tuned.shape[1], self.features.shape[1]
        one, zero = self.tuned.new_ones(classes), self.tuned.new_zeros
        return torch.cat([one, zero(1), one, zero(classes), zero(width), zero(1)])

    def teach(self, theta: Vec) -> Tensor:
        """Return the teacher's logits."""
        classes, width = self.tuned.shape[1], self.features.shape[1]
        s, b, t, q, v, c = theta.split([classes, 1, classes, classes, width, 1])
        weights = softmax(logsigmoid(self.clients @ s + b), dim=0)
        ensemble = t * (weights[..., None] * self.clients).sum(dim=0) + q
        gate = torch.sigmoid(self.features @ v + c)[:, None]
        return torch.lerp(self.tuned, ensemble, gate)
