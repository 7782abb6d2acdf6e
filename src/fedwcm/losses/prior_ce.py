"""Prior cross-entropy (balanced softmax): the class distribution enters the loss instead of the model.

Ren, Yu, Sheng, Ma, Zhao, Yi, Li. Balanced Meta-Softmax for Long-Tailed Visual Recognition. NeurIPS 2020. Menon,
Jayasumana, Rawat, Jain, Veit, Kumar. Long-Tail Learning via Logit Adjustment. ICLR 2021. Hong, Han, Choi, Seo,
Kim, Chang. Disentangling Label Distribution for Long-tailed Visual Recognition. CVPR 2021. Sources:
sxontheway/BalanceFL.

    loss = CE(u + tau · (log p − log p̂), y)
    u    = scale · z                                 or, with `normalize`,
    u    = scale · z / sqrt(1 + |f|²)                f the features that the logits z are computed from

p is the class distribution: the client's own (`prior="client"`, the "Balance Loss" of FedWCM's tables) or the one
gathered over all clients (`prior="global"`); p̂ is the distribution that the model will meet (`run.target`, uniform
by default). The model is tested and used on u, that is, as if the classes were distributed as p̂. A class that a
client does not have drops out of its softmax (its logit is shifted by −20.7), so that the client does not push it
down; a class that no client has counts as half a sample in the gathered distribution. tau = 0, or p = p̂, is
cross-entropy.

Divided by the norm of the features and the bias's input, logits are bounded by the norms of the head's rows, so
that no client can reduce its loss by inflating its features. All classes of a sample are divided by the same
number: the predicted class does not depend on `normalize`. Departures: none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedwcm.balance import ABSENT, prior_shift
from fedwcm.core.batch import Batch, Outputs
from fedwcm.core.checks import Needs
from fedwcm.core.loss import ExplicitLoss, LogitScale, LossGradient, inverse_feature_norm
from fedwcm.core.ranges import NonNegative, Positive
from fedwcm.core.types import Context, Floats
from fedwcm.losses.class_weights import CountsOf, class_counts
from fedwcm.losses.cross_entropy import cross_entropy_with_gradient, shift_factors


@dataclass(frozen=True, kw_only=True)
class PriorCE(ExplicitLoss):
    """Cross-entropy of the logits shifted by the log class distribution.

    Args:
        prior: the distribution to use: the client's own (`client`), or that over all clients (`global`).
        tau: strength of the shift; 0 is cross-entropy.
        normalize: divide the logits by the norm of the features.
        scale: factor on the logits; about 10 for normalised ones.
    """

    name: ClassVar[str] = "prior_ce"
    needs: ClassVar[Mapping[str, Needs]] = {"prior": Needs(lambda loss: loss.tau > 0, "tau > 0")}
    follows_target: ClassVar[bool] = True

    prior: CountsOf = "client"
    tau: NonNegative = 1.0
    normalize: bool = False
    scale: Positive = 1.0

    @property
    def logit_scale(self) -> LogitScale:
        return LogitScale(self.scale, self.normalize)

    @property
    def corrects_prior(self) -> bool:
        return self.tau > 0

    def class_factors(self, ctx: Context) -> Floats | None:
        return shift_factors(self._shift(ctx), ctx) if self.tau else super().class_factors(ctx)

    def with_gradient(self, outputs: Outputs, batch: Batch, ctx: Context) -> LossGradient:
        z, f = outputs.logits.detach(), outputs.features.detach()
        factor = self.scale * inverse_feature_norm(f) if self.normalize else self.scale
        loss, by_u = cross_entropy_with_gradient(z * factor + self._shift(ctx), batch)
        if not isinstance(factor, Tensor):
            return LossGradient(loss, by_u.mul_(factor))
        # u = s z (1 + |f|²)^(−1/2), so that ∂u/∂f = −u f / (1 + |f|²).
        along = (by_u * z).sum(dim=-1, keepdim=True).mul_(factor**3).div_(-(self.scale**2))
        return LossGradient(loss, by_u.mul_(factor), f * along)

    def _shift(self, ctx: Context) -> Tensor:
        """Return what is added to the logits, `(K, 1, C)`, or `(1, 1, C)` for all clients."""
        absent = ABSENT if self.prior == "global" else 0.0
        return ctx.constant(
            ("prior shift", self.prior, self.tau),
            lambda: prior_shift(class_counts(self.prior, ctx), ctx.population.target, self.tau, absent)[:, None],
        )
