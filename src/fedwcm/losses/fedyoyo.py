"""FedYoYo's local loss: a model is taught on a strong view of a sample what it says about a weak one.

Yan, Li, Wu, Pang, Lu, Yan, Wang. You Are Your Own Best Teacher: Achieving Centralized-level Performance in
Federated Learning under Heterogeneous and Long-tailed Data. ICCV 2025. Sources: shanss132/FedYoYo (the authors'
code).

    u    = z + tau · log π,      π = (1 − gamma) · π_global + gamma · π_client
    loss = CE(u, y) over both views + distill · min(1, r / warmup) · KL(softmax(t / T) ‖ softmax(u_strong / T))

t is u of the weak view, without gradient; the divergence is averaged over the samples whose weak view is
classified right, r is the number of rounds before this one, T is `temperature`. π_global is what the method
`fedyoyo` sends; with other methods it is the gathered class distribution. The weak view is the batch as it is,
flipped and cropped with `data.augment`. In the strong view, a square of `hole` times the height and width is
blanked as well; of inputs that are no images, each value with the probability hole². Both go through the model at
once: twice the work. π_global and π are at least the share of half a sample.

**Traps:** their loop mixes π anew in every batch, on top of the last, so that after 44 batches it is 99 % the
client's own: gamma = 1 is that limit. The weight of the distillation is 4 in their script and 1.5 in their code.
Departures: their strong view also has AutoAugment's colours and shears, and their weak one rotations. They count
rounds from 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

from fedwcm.balance import ABSENT
from fedwcm.core.batch import Batch, Outputs
from fedwcm.core.checks import Needs
from fedwcm.core.loss import Loss
from fedwcm.core.ranges import CountOrZero, NonNegative, Positive, Share
from fedwcm.core.types import Context, Floats, State

DISTILLS = Needs(lambda loss: loss.distill > 0, "distill > 0")


@dataclass(frozen=True, kw_only=True)
class FedYoYoLoss(Loss):
    """Cross-entropy of shifted logits on two views, and distillation from the weak to the strong one.

    Args:
        tau: strength of the shift by the class distribution; 0 for none.
        gamma: share of the client's own class distribution in it.
        distill: weight of the distillation; 0 for none.
        temperature: divisor of both views' logits in the distillation.
        warmup: rounds over which the distillation sets in; 0 for none.
        hole: side of the blanked square, as a share of the image's.
    """

    name: ClassVar[str] = "fedyoyo"
    averages_samples: ClassVar[bool] = False
    needs: ClassVar[Mapping[str, Needs]] = {
        "gamma": Needs(lambda loss: loss.tau > 0, "tau > 0"),
        "temperature": DISTILLS,
        "warmup": DISTILLS,
    }

    tau: NonNegative = 1.5
    gamma: Share = 0.1
    distill: NonNegative = 4.0
    temperature: Positive = 1.5
    warmup: CountOrZero = 50
    hole: Share = 0.5

    @property
    def corrects_prior(self) -> bool:
        return self.tau > 0

    def class_factors(self, ctx: Context) -> Floats:
        return np.exp(-self._shift(ctx))

    def views(self, batch: Batch, rngs: Sequence[np.random.Generator]) -> Batch:
        shape = tuple(batch.inputs.shape[1:])
        blank = torch.from_numpy(np.stack([holes(shape, self.hole, rng) for rng in rngs]))
        return batch.with_view(batch.inputs.masked_fill(blank.to(batch.inputs.device), 0))

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        u = outputs.logits + ctx.constant(("fedyoyo", self), lambda: self._shift(ctx)[:, None])
        loss = batch.mean(cross_entropy(u.mT, batch.labels, reduction="none"))
        if batch.views == 1 or not self.distill:
            return loss, o
        weak, strong = u.chunk(2, dim=1)
        teacher = log_softmax(weak.detach() / self.temperature, dim=-1)
        divergence = (teacher.exp() * (teacher - log_softmax(strong / self.temperature, dim=-1))).sum(dim=-1)
        right = (weak.argmax(dim=-1) == batch.labels.chunk(2, dim=1)[0]).to(u.dtype)
        if batch.weight is not None:
            right = right * batch.weight.chunk(2, dim=1)[0]
        taught = (right * divergence).sum(dim=-1) / right.sum(dim=-1).clamp(min=1.0)
        ramp = min(1.0, ctx.round / self.warmup) if self.warmup else 1.0
        return loss + self.distill * ramp * taught, o

    def _shift(self, ctx: Context) -> Floats:
        """Return what is added to the logits, `(K, C)`: 0 for equally frequent classes."""
        population, counts = ctx.population, ctx.clients.counts
        least = ABSENT / (population.clients * population.mean_samples)
        sent = ctx.message.get("shares")
        shares = np.maximum(population.prior, least) if sent is None else sent.double().cpu().numpy()
        own = counts / counts.sum(axis=1, keepdims=True)
        mixed = np.maximum((1.0 - self.gamma) * shares + self.gamma * own, least)
        shift: Floats = self.tau * np.log(len(shares) * mixed)
        return shift


def holes(shape: tuple[int, ...], side: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return where inputs `(b, …)` are blanked: a square of each image, cut off at its edges, or single values."""
    if len(shape) < 4:
        return rng.random(shape) < side**2
    blank, centres = np.ones((shape[0], 1, 1, 1), dtype=bool), rng.random((shape[0], 2))  # as many for each sample
    for axis in (2, 3):
        length = shape[axis]
        centre = (centres[:, axis - 2, None] * length).astype(np.int64)
        ends = np.arange(length) - centre + round(side * length) // 2
        inside = (ends >= 0) & (ends < round(side * length))
        blank = blank & np.expand_dims(inside, (1, 5 - axis))
    return np.broadcast_to(blank, shape)
