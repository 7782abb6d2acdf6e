"""LDAM: cross-entropy with wider margins for rarer classes.

Cao, Wei, Gaidon, Arechiga, Ma. Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss. NeurIPS
2019. Sources: kaidic/LDAM-DRW (the authors' code).

    m_c  = max_margin · n_c^(−1/4) / max_j n_j^(−1/4)             n_c = 0 counts as 1
    loss = v_y · CE(scale · (z − m_y on class y), y)
    v_c  = 1 for the share `drw` of the rounds, then the effective-number weights of `class_weights`

n_c are the client's own counts or those of the whole federation (`prior`). max_margin = 0 with scale = 1, drw = 1
and normalize = false is cross-entropy.

Departure: the paper's classifier is a cosine, W_c·f / (‖W_c‖ ‖f‖), and `scale` makes sense only for logits of
about that size. Here a model has its ordinary linear head. Dividing each logit by its own ‖W_c‖ in the
loss alone would change the predicted class, that is, train a different classifier from the one that is used. So
`normalize` divides by what all classes share, ‖(f, 1)‖, the 1 being the input of the bias: the predicted
class and the norms of the rows stay the same. Plain logits times 30 do not train at the usual learning rates. The
paper's own classifier is the model's option `head = "cosine"`, with `normalize = false` here: then
that cosine is trained, evaluated and exported.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from fedwcm.core.batch import Batch, Outputs
from fedwcm.core.checks import Needs
from fedwcm.core.loss import LogitScale, Loss, inverse_feature_norm
from fedwcm.core.ranges import BelowOne, NonNegative, Positive, Share
from fedwcm.core.types import Context, Floats, State
from fedwcm.losses.class_weights import CountsOf, class_counts, class_weights, of_labels

ROUNDING = 1e-9
"""Taken off a product of a share and a number of rounds, so that 0.55 of 100 is not above 55."""


@dataclass(frozen=True, kw_only=True)
class LDAM(Loss):
    """Cross-entropy with class-dependent margins, and re-weighting in the last rounds.

    Args:
        max_margin: margin of the rarest class.
        scale: s, the factor on the logits.
        prior: the counts to use: the client's own (`client`), or the sum over all clients (`global`).
        drw: share of the rounds after which samples are weighted by class; 1 for never.
        beta: β of the effective number of samples, (1 − β^n) / (1 − β), for these weights.
        normalize: divide the logits by the norm of the features.
    """

    name: ClassVar[str] = "ldam"
    needs: ClassVar[Mapping[str, Needs]] = {
        "prior": Needs(lambda loss: loss.max_margin > 0 or loss.drw < 1, "max_margin > 0, or drw < 1"),
        "beta": Needs(lambda loss: loss.drw < 1, "drw < 1"),
    }

    max_margin: NonNegative = 0.5
    scale: Positive = 30.0
    prior: CountsOf = "client"
    drw: Share = 0.8
    beta: BelowOne = 0.9999
    normalize: bool = True

    @property
    def depends_on_rounds(self) -> bool:
        return self.drw < 1

    @property
    def logit_scale(self) -> LogitScale:
        return LogitScale(self.scale, self.normalize)

    @property
    def corrects_prior(self) -> bool:
        return True

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        logits = outputs.logits
        if self.normalize:
            logits = logits * inverse_feature_norm(outputs.features)
        table = ctx.constant(
            ("margins", self.prior, self.max_margin),
            lambda: margins(class_counts(self.prior, ctx), self.max_margin),
        )
        margin = of_labels(table, batch.labels)
        logits = logits - margin[..., None] * one_hot(batch.labels, logits.shape[-1])
        losses = cross_entropy(self.scale * logits.mT, batch.labels, reduction="none")
        if ctx.round >= self.drw * ctx.population.rounds - ROUNDING:
            losses = of_labels(class_weights(self.prior, "effective", self.beta, ctx), batch.labels) * losses
        return batch.mean(losses), o


def margins(counts: Floats, largest: float) -> Floats:
    """Return the margin of each class: `largest` for the rarest, less for the others."""
    scarcity = np.maximum(counts, 1.0) ** -0.25
    rows: Floats = largest * scarcity / scarcity.max(axis=1, keepdims=True)
    return rows
