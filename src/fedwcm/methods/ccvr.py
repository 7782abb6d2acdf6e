"""CCVR: FedAvg whose classifier is calibrated on virtual features, drawn from a Gaussian of each class.

Luo, Chen, Hu, Zhang, Liang, Feng. No Fear of Heterogeneity: Classifier Calibration for Federated Learning with
Non-IID Data. NeurIPS 2021. Sources: smduan/Fed-CCVR.

    μ_c, Σ_c = mean and covariance of the features of class c, over the clients' samples
    F_c ~ N(μ_c, Σ_c), `virtual` features of every class
    (W, b) ← `retrain_epochs` of SGD on the cross-entropy of all F_c, from the trained head

All classes have as many virtual features, so that the calibrated head has no prior. Clients upload counts, sums
and sums of products per class, C(1 + d + d²) numbers: exact and linear, so that encryption can add them. That is
much for a wide model, so it happens only in the last `last` rounds; before, the model is evaluated as it is. A
class without samples keeps no virtual features.

Departures: the paper gathers once, after training, from all clients; here the clients of the last rounds send, and
`memory` says how much of the older sums stays. Public code uses Adam or SGD with various rates.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fedwcm.core.ranges import Count, Positive
from fedwcm.core.types import Context, State
from fedwcm.methods.closed_form import FeatureSums
from fedwcm.methods.head import train_head


@dataclass(frozen=True, kw_only=True)
class CCVR(FeatureSums):
    """FedAvg evaluated with a head calibrated on virtual features.

    Args:
        last: rounds at the end in which clients send their statistics.
        virtual: number of virtual features per class.
        retrain_epochs: passes over the virtual features that train the head.
        retrain_lr: learning rate of the head.
        retrain_batch: virtual features per mini-batch.
    """

    name: ClassVar[str] = "ccvr"
    sum_keys: ClassVar[tuple[str, ...]] = ("features", "counts", "products")

    last: Count = 10
    virtual: Count = 500
    retrain_epochs: Count = 10
    retrain_lr: Positive = 0.01
    retrain_batch: Count = 64

    @property
    def depends_on_rounds(self) -> bool:
        return True

    def gathers(self, round_: int, rounds: int) -> bool:
        return round_ >= rounds - self.last

    def batch_sums(self, inputs: Tensor, members: Tensor, ctx: Context) -> State:
        products = torch.einsum("kbc,kbi,kbj->kcij", members, inputs, inputs)
        return {"features": members.mT @ inputs, "counts": members.sum(dim=1), "products": products}

    def computed_head(self, sums: State, head: Tensor, width: int, rng: np.random.Generator) -> Tensor:
        features, labels = self.virtual_features(sums, width, rng)
        inputs = pad(features, (0, head.shape[1] - width), value=1.0).to(head)
        targets = torch.eye(len(head)).to(head)[labels.to(head.device)]
        shuffles = torch.Generator().manual_seed(int(rng.integers(2**63)))
        return train_head(
            head, inputs, targets, self.retrain_epochs, self.retrain_batch, self.retrain_lr, shuffles
        )

    def virtual_features(self, sums: State, width: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return features drawn from the Gaussians of the classes that have samples, and their classes."""
        present = (sums["counts"] > 0).nonzero()[:, 0].cpu()
        counts = sums["counts"].double().cpu()[present]
        means = sums["features"].double().cpu()[present, :width] / counts[:, None]
        second = sums["products"].double().cpu()[present, :width, :width] / counts[:, None, None]
        covariances = second - means[:, :, None] * means[:, None, :]
        values, axes = torch.linalg.eigh(covariances)
        noise = torch.from_numpy(rng.normal(size=(len(present), self.virtual, width)))
        spread = noise * values.clamp(min=0.0).sqrt()[:, None]
        drawn = means[:, None] + spread @ axes.mT
        return drawn.reshape(-1, width), present.repeat_interleave(self.virtual)
