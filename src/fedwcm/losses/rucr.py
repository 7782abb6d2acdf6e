"""RUCR's local loss: features are pulled towards class means of all clients, with the class distribution in it.

RUCR: Representation Unified Classifier Re-training for Class-Imbalanced Federated Learning. Sources:
gzhu-hcai/LongTailLib (2026, a copy of the authors' code).

    loss = CE(z, y) + contrast · CE(u, y)
    u_c  = cos(f, m_c) / temperature + [c = y] · log π_y        a cosine of 0 for a class that the client lacks

m_c is the mean of the features of class c over the clients of the round (`methods/rucr.py` sends it), π the
gathered class distribution. With a method that sends no means, and with contrast = 0, this is cross-entropy.

Departure: their code takes π from the clients of the round.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, one_hot

from fedwcm.balance import ABSENT
from fedwcm.core.batch import Batch, Outputs
from fedwcm.core.checks import Needs
from fedwcm.core.ranges import NonNegative, Positive
from fedwcm.core.types import Context, Floats, State
from fedwcm.losses.cross_entropy import CrossEntropy


@dataclass(frozen=True, kw_only=True)
class RUCRLoss(CrossEntropy):
    """Cross-entropy of the logits and of the cosines with class means.

    Args:
        contrast: weight of the second term; 0 is cross-entropy.
        temperature: divisor of the cosines.
    """

    name: ClassVar[str] = "rucr"
    needs: ClassVar[Mapping[str, Needs]] = {"temperature": Needs(lambda loss: loss.contrast > 0, "contrast > 0")}

    contrast: NonNegative = 0.15
    temperature: Positive = 0.9

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        loss, o = super().__call__(outputs, batch, o, ctx)
        if not self.contrast or "means" not in ctx.message:
            return loss, o
        cosines = normalize(outputs.features, dim=-1) @ normalize(ctx.message["means"], dim=-1).T
        present = ctx.constant("rucr present", lambda: (ctx.clients.counts > 0).astype(np.float64))
        shares = ctx.constant("rucr shares", lambda: _log_shares(ctx))
        own = one_hot(batch.labels, cosines.shape[-1])
        similarity = cosines * present[:, None] / self.temperature + own * shares
        return loss + self.contrast * batch.mean(cross_entropy(similarity.mT, batch.labels, reduction="none")), o


def _log_shares(ctx: Context) -> Floats:
    """Return log π; a class without samples counts as half a sample."""
    total = ctx.population.clients * ctx.population.mean_samples
    logs: Floats = np.log(np.maximum(ctx.population.prior, ABSENT / total))
    return logs
