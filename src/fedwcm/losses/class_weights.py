"""Class-weighted cross-entropy: samples of rarer classes have larger weights.

Cui, Jia, Lin, Song, Belongie. Class-Balanced Loss Based on Effective Number of Samples. CVPR 2019. Sources:
kaidic/LDAM-DRW.

    loss = v_y · (−log softmax(z)_y)
    v_c ∝ 1 / n_c                             `scheme="inverse"`
    v_c ∝ (1 − beta) / (1 − beta^n_c)         `scheme="effective"`: beta → 1 is inverse, beta = 0 is uniform

n_c are the client's own counts or those of the whole federation (`prior`). The weights have mean 1 over the
classes that occur, so balanced counts give cross-entropy. A class that the gathered counts do not have, because
noise hides it (`privacy.epsilon`), weighs as much as the rarest of the others.

Departure: the mean over a batch divides by its number of samples. Public code divides by the sum of the batch's
weights, which makes the scale of a step depend on the composition of the batch (a batch of a single class would
not be weighted at all).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedwcm.core.batch import Batch, Outputs
from fedwcm.core.checks import Needs
from fedwcm.core.loss import Loss
from fedwcm.core.ranges import BelowOne
from fedwcm.core.types import Context, Floats, State

CountsOf = Literal["client", "global"]
Scheme = Literal["inverse", "effective"]


@dataclass(frozen=True, kw_only=True)
class ClassWeights(Loss):
    """Cross-entropy with one weight per class.

    Args:
        scheme: weight by the inverse of the counts, or by that of the effective number of samples.
        prior: the counts to use: the client's own (`client`), or the sum over all clients (`global`).
        beta: β of the effective number of samples, (1 − β^n) / (1 − β); only for `effective`.
    """

    name: ClassVar[str] = "class_weights"
    needs: ClassVar[Mapping[str, Needs]] = {
        "beta": Needs(lambda loss: loss.scheme == "effective", "scheme = effective"),
    }

    scheme: Scheme = "inverse"
    prior: CountsOf = "client"
    beta: BelowOne = 0.9999

    @property
    def corrects_prior(self) -> bool:
        return True

    def class_factors(self, ctx: Context) -> Floats:
        return balancing_weights(class_counts(self.prior, ctx), self.scheme, self.beta)

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        losses = cross_entropy(outputs.logits.mT, batch.labels, reduction="none")
        weights = class_weights(self.prior, self.scheme, self.beta, ctx)
        return batch.mean(of_labels(weights, batch.labels) * losses), o


def class_counts(source: CountsOf, ctx: Context) -> Floats:
    """Return the number of samples of each class: one row per client, or a single row for all clients."""
    if source == "client":
        return ctx.clients.counts.astype(np.float64)
    total = ctx.population.clients * ctx.population.mean_samples
    row: Floats = ctx.population.prior[None] * total
    return row


def balancing_weights(counts: Floats, scheme: Scheme, beta: float) -> Floats:
    """Return a weight for each class: mean 1 over the classes that occur in a row.

    The others weigh as much as the rarest: noise may have hidden from the gathered counts what a client has.
    """
    number = counts if scheme == "inverse" else 1.0 - beta**counts
    present = counts > 0
    weights = np.where(present, 1.0 / np.where(present, number, 1.0), 0.0)
    weights *= (present.sum(axis=1) / weights.sum(axis=1))[:, None]
    rows: Floats = np.where(present, weights, weights.max(axis=1, keepdims=True))
    return rows


def class_weights(prior: CountsOf, scheme: Scheme, beta: float, ctx: Context) -> Tensor:
    """Return the weight of each class: one row per client, or a single row for all clients."""
    return ctx.constant(
        ("class weights", prior, scheme, beta), lambda: balancing_weights(class_counts(prior, ctx), scheme, beta)
    )


def of_labels(table: Tensor, labels: Tensor) -> Tensor:
    """Return the entries of a table (one column per class) for the labels `(K, b)`."""
    return table.expand(len(labels), -1).gather(1, labels)
