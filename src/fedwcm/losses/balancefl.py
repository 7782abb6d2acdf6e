"""BalanceFL's local loss: distillation preserves what the received model knows about classes absent from a batch.

Shuai, Shen, Jiang, Zhao, Yan, Xing. BalanceFL: Addressing Class Imbalance in Long-Tail Federated Learning. IPSN
2022. Sources: sxontheway/BalanceFL (the authors' code).

P are the classes in the mini-batch, Q all others; z the logits, z̃ those of the augmented features, t the logits of
the received model. Softmaxes are over P or Q only:

    loss = CE(z̃_P, y) + lambda_ · KD(z_Q, t_Q) − entropy · Σ_i H(softmax(z_iP))
    KD   = −mean_i Σ_{c∈Q} softmax(t_i / temperature)_c · log softmax(z_i / temperature)_c        no T² factor
    z̃_i  = head(f_i + ν_i) with probability 1 − n_y / max_c n_c, else head(f_i)
    ν ~ N(0, Σ),   Σ = Σ_c (n_c / n) · Cov(features of class c at the received model)

The entropy is a sum over the batch, not a mean. Σ and the random numbers are drawn once per round (`prepare`): a
ring buffer of `draws` pairs of a vector ν and a uniform number that decides whether ν is used. Each sample takes
the next pair. lambda_ = entropy = draws = 0 is cross-entropy over the classes of the batch.

With FedAvg and the `balanced` sampler this is the recipe `balancefl`. Departures: the optimiser, the model and the
doubled logits of the authors' code are not part of the loss, nor is its second stage, which is off by default. In
their code only perturbed samples advance the ring; here every sample does, which is the same in distribution.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import log_softmax, one_hot

from fedwcm.core.batch import Batch, LocalData, Outputs
from fedwcm.core.checks import Needs
from fedwcm.core.loss import Loss
from fedwcm.core.ranges import CountOrZero, NonNegative, Positive
from fedwcm.core.rng import Purpose
from fedwcm.core.types import Clients, Context, Floats, Population, State


@dataclass(frozen=True, kw_only=True)
class BalanceFL(Loss):
    """Cross-entropy on augmented features, distillation over absent classes, an entropy bonus.

    Args:
        lambda_: weight of the distillation from the received model.
        temperature: temperature of the distillation.
        entropy: weight of the entropy, summed over the batch.
        draws: noise vectors drawn per round; 0 for no augmentation.
    """

    name: ClassVar[str] = "balancefl"
    needs: ClassVar[Mapping[str, Needs]] = {
        "temperature": Needs(lambda loss: loss.lambda_ > 0, "lambda_ > 0"),
    }
    averages_samples: ClassVar[bool] = False

    lambda_: NonNegative = 1.0
    temperature: Positive = 2.0
    entropy: NonNegative = 0.002
    draws: CountOrZero = 500

    @property
    def corrects_prior(self) -> bool:
        return True

    def class_factors(self, ctx: Context) -> Floats:
        return (ctx.clients.counts > 0).astype(np.float64)  # others are left out of the softmax

    def init_client(self, clients: Clients, population: Population) -> State:
        return {"position": torch.zeros(len(clients), dtype=torch.int64)} if self.draws else {}

    def prepare(self, local: LocalData, ctx: Context) -> State:
        if not self.draws:
            return {}
        spread = _spread(*_features(local, ctx))
        noise, chance = [], []
        for rows, samples, rng in zip(spread, ctx.clients.samples, ctx.generators(Purpose.LOSS), strict=True):
            mix = torch.from_numpy(rng.standard_normal((self.draws, samples)))
            noise.append(mix.to(rows) @ rows[:samples])
            chance.append(torch.from_numpy(rng.random(self.draws)).to(rows))
        return {"noise": torch.stack(noise), "chance": torch.stack(chance)}

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        present = _present(batch, outputs.logits.shape[-1])
        augmented, o = self._augment(outputs, batch, o, ctx)
        fit = _log_softmax(augmented, present).gather(-1, batch.labels[..., None])[..., 0]
        loss = -batch.mean(fit)
        if self.lambda_:
            loss = loss + self.lambda_ * batch.mean(self._distillation(outputs, ~present, ctx))
        if self.entropy:
            own = _log_softmax(outputs.logits, present)
            negative_entropy = _sum_over(present, own.exp() * own)
            loss = loss + self.entropy * batch.mean(negative_entropy) * batch.sizes
        return loss, o

    def _augment(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        """Return logits with noise on the features of minority classes, and the new position in the ring."""
        if "noise" not in ctx.prepared:  # no augmentation, or a pass over all data outside training
            return outputs.logits, o
        noise, chance = ctx.prepared["noise"], ctx.prepared["chance"]
        ring = (o["position"][:, None] + torch.arange(batch.labels.shape[1], device=noise.device)) % self.draws
        vectors = noise.gather(1, ring[..., None].expand(-1, -1, noise.shape[-1]))
        counts = ctx.constant("counts", lambda: ctx.clients.counts)
        share = (counts / counts.amax(dim=1, keepdim=True)).gather(1, batch.labels)
        used = chance.gather(1, ring) < 1.0 - share
        position = (o["position"] + batch.sizes.long()) % self.draws
        return outputs.head(outputs.features + vectors * used[..., None]), {**o, "position": position}

    def _distillation(self, outputs: Outputs, absent: Tensor, ctx: Context) -> Tensor:
        received = _log_softmax(outputs.at(ctx.x).logits / self.temperature, absent)
        own = _log_softmax(outputs.logits / self.temperature, absent)
        return -_sum_over(absent, received.exp() * own)


def _present(batch: Batch, classes: int) -> Tensor:
    """Return which classes occur in each client's batch, `(K, 1, C)`, ignoring padding."""
    hits = one_hot(batch.labels, classes)
    if batch.weight is not None:
        hits = hits * batch.weight[..., None]
    return hits.sum(dim=1, keepdim=True) > 0


def _log_softmax(logits: Tensor, among: Tensor) -> Tensor:
    """Return the log-softmax over the masked-in classes; finite elsewhere, so that a weight of 0 removes it."""
    return log_softmax(logits.masked_fill(~among, torch.finfo(logits.dtype).min), dim=-1)


def _sum_over(among: Tensor, values: Tensor) -> Tensor:
    return torch.where(among, values, 0.0).sum(dim=-1)


def _features(local: LocalData, ctx: Context) -> tuple[Tensor, Tensor]:
    """Return all local samples' features `(K, n, d)` at the received model, and their classes `(K, n, C)`."""
    received = ctx.x.expand(len(ctx.clients), -1)
    features, classes = [], []
    for batch in local.batches():
        outputs = local.outputs(received, batch)
        if not outputs.features.numel():
            raise ValueError("loss balancefl with draws > 0 needs a model with a final linear layer")
        hits = one_hot(batch.labels, outputs.logits.shape[-1]).to(outputs.features)
        features.append(outputs.features)
        classes.append(hits if batch.weight is None else hits * batch.weight[..., None])
    return torch.cat(features, dim=1), torch.cat(classes, dim=1)


def _spread(features: Tensor, classes: Tensor) -> Tensor:
    """Return a root of Σ, `(K, n, d)`: the sum of its rows times independent standard normals is N(0, Σ).

    Row i is the sample's deviation from its class mean, times √(n_c / (n (n_c − 1))); it is zero for a class of
    one sample. This avoids the covariance matrix and its decomposition.
    """
    counts = classes.sum(dim=1)
    means = (classes.mT @ features) / counts.clamp(min=1)[..., None]
    total = counts.sum(dim=1, keepdim=True)
    scale = (counts / (total * (counts - 1).clamp(min=1))).sqrt()
    return (features - classes @ means) * (classes @ scale[..., None])
