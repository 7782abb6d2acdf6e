"""FedNPC: FedAvg whose classifier is trained on noise before it is evaluated, so that it prefers no class.

Gao, Zhao, Yang, Guo. FedNPC: Stochastic Noise-driven Post-hoc Classifier Calibration Method for Federated
Long-tailed Learning. CVPR Findings 2026. Sources: JintongGao/FedNPC (the authors' code).

    features f ~ N(0, I), `noise_samples` of them
    (W, b) ← a step of SGD with momentum 0.9 on the mean of CE(W f + b, label), with uniform labels drawn
             anew each time; `noise_steps` times, from the trained head

There is nothing to learn from noise but indifference: the rows and biases of classes that the head prefers shrink.
Training does not see it, no client is asked, and no class counts are needed. It is computed at each evaluation.

**Trap:** the authors' code picks the best of 27 steps by accuracy on test data. Here all of them are taken, and
their number is an option to choose on validation data: 27 leave nothing of a small head but noise, so that the
default is 10.
Departures: the noise is the same in all runs, and the features in all steps; their code draws both anew.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad, softmax

from fedwcm.core.ranges import Count, CountOrZero, Positive
from fedwcm.core.types import State
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.head import EvaluatedHead

MOMENTUM = 0.9
SEED = 0
"""Of the noise."""


@dataclass(frozen=True, kw_only=True)
class FedNPC(EvaluatedHead, FedAvg):
    """FedAvg evaluated with a head calibrated on noise.

    Args:
        noise_steps: optimisation steps on the noise; 0 is FedAvg.
        noise_samples: number of noise features.
        noise_lr: learning rate of these steps.
    """

    name: ClassVar[str] = "fednpc"

    noise_steps: CountOrZero = 10
    noise_samples: Count = 10_000
    noise_lr: Positive = 0.1

    def evaluated_head(self, weight: Tensor, bias: Tensor, s: State) -> tuple[Tensor, Tensor]:
        classes, width = weight.shape
        rng = torch.Generator().manual_seed(SEED)
        head = torch.cat([weight, bias], dim=-1)
        velocity = torch.zeros_like(head)
        noise = torch.randn(self.noise_samples, width, generator=rng, dtype=weight.dtype).to(weight.device)
        inputs = pad(noise, (0, bias.shape[1]), value=1.0)
        for _ in range(self.noise_steps):
            labels = torch.randint(classes, (self.noise_samples,), generator=rng).to(weight.device)
            by_logits = softmax(inputs @ head.T, dim=-1) - one_hot(labels, classes)
            velocity = MOMENTUM * velocity + by_logits.T @ inputs / self.noise_samples
            head = head - self.noise_lr * velocity
        return head[:, :width], head[:, width:]
