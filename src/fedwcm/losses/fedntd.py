"""FedNTD: not-true distillation preserves what the received model says about the wrong classes of a sample.

Lee, Jeong, Shin, Bae, Yun. Preservation of the Global Knowledge by Not-True Distillation in Federated Learning.
NeurIPS 2022. Sources: Lee-Gihun/FedNTD (the authors' code).

    loss = CE(z, y) + beta · tau² · KL(softmax(t̃ / tau) ‖ softmax(z̃ / tau))

z̃ and t̃ are the logits of the local and of the received model without that of the true class y, so that learning y
is not held back. beta = 0 is cross-entropy, and so is any beta for two classes, which leave one not-true class.
**Trap:** the class in the authors' code defaults to tau = 3, their experiments use 1, which is the default here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import log_softmax, one_hot

from fedwcm.core.batch import Batch, Outputs
from fedwcm.core.checks import Needs
from fedwcm.core.ranges import NonNegative, Positive
from fedwcm.core.types import Context, State
from fedwcm.losses.cross_entropy import CrossEntropy

EXCLUDED = -1e9
"""A logit whose class has no share in a softmax."""


@dataclass(frozen=True, kw_only=True)
class FedNTD(CrossEntropy):
    """Cross-entropy with distillation over the classes that a sample does not have.

    Args:
        beta: weight of the distillation; 0 is cross-entropy.
        tau: temperature of both models' logits in the distillation.
    """

    name: ClassVar[str] = "fedntd"
    needs: ClassVar[Mapping[str, Needs]] = {"tau": Needs(lambda loss: loss.beta > 0, "beta > 0")}

    beta: NonNegative = 1.0
    tau: Positive = 1.0

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        loss, o = super().__call__(outputs, batch, o, ctx)
        if not self.beta:
            return loss, o
        student = self._not_true(outputs.logits, batch)
        teacher = self._not_true(outputs.at(ctx.x).logits, batch)
        divergence = (teacher.exp() * (teacher - student)).sum(dim=-1)
        return loss + self.beta * self.tau**2 * batch.mean(divergence), o

    def _not_true(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the log-probabilities of the classes other than each sample's own."""
        own = one_hot(batch.labels, logits.shape[-1]).bool()
        return log_softmax(logits.masked_fill(own, EXCLUDED) / self.tau, dim=-1)
