"""Fed-GraB's self-adjusting gradient balancer: a controller per class balances positive and negative gradients.

Xiao, Chen, Liu, Wang, Feng, Hao, Zhou, Wu, Yang, Liu. Fed-GraB: Federated Long-tailed Learning with
Self-Adjusting Gradient Balancer. NeurIPS 2023. Sources: ZackZikaiXiao/FedGraB (the authors' code).

    loss = mean_i Σ_c a_ic · BCE(σ(z_ic), y_ic)              y_ic = 1 for the sample's own class, else 0
    a_ic = f(u_c) if y_ic = 1, f(−u_c) if not,      f(u) = 10 / (1 + 9 e^(−slope · u)) in (0, 10), f(0) = 1
    u_c += kp (e − e′) + ki e + kd (e − 2e′ + e″)            PID in incremental form, once per step
    e_c  = Σ over past steps of Σ_{i: y_ic = 0} |∂loss/∂z_ic| − Σ_{i: y_ic = 1} |∂loss/∂z_ic|

e′ and e″ are the errors one and two steps ago. Each client keeps u and the errors of its classes between rounds.
a is treated as a constant by the gradient, so this is the gradient that the authors' hook on the logits computes.

The server's message says which controllers are on (`tail`, one number per class, see `methods/fedgrab.py`);
without such a message all are on. A controller that is off has a = 1 and starts from zero when it is turned on.

Departures: in the authors' code the classifier is left out of the optimiser; here it is trained. In their code all
classes are declared tail, and a random gate that goes through the classes in the order of their indices turns some
off at each step; here the server's estimate decides. Their limit of 100 on u has no effect; here there is none.
Versions of their code differ in the slope (0.05 and 0.01) and in the gains.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot

from fedwcm.core.batch import Batch, Outputs
from fedwcm.core.loss import Loss
from fedwcm.core.ranges import NonNegative
from fedwcm.core.types import Clients, Context, Population, State

EXPONENT_LIMIT = 50.0
"""Bound on the exponent: beyond e^±50 a weight no longer changes, except that float32 would round it to 0."""


@dataclass(frozen=True, kw_only=True)
class GraB(Loss):
    """Binary cross-entropy for every class, balanced by one PID controller per client and class.

    Args:
        kp: proportional gain.
        ki: integral gain.
        kd: derivative gain; all three 0 is plain binary cross-entropy.
        slope: how steeply the weights follow the controllers.
    """

    name: ClassVar[str] = "grab"

    kp: NonNegative = 10.0
    ki: NonNegative = 0.01
    kd: NonNegative = 0.1
    slope: NonNegative = 0.5

    @property
    def corrects_prior(self) -> bool:
        return True

    def init_client(self, clients: Clients, population: Population) -> State:
        shape = len(clients), population.classes
        return {"output": torch.zeros(shape), "errors": torch.zeros(shape[0], 3, shape[1])}

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        now, before, earlier = o["errors"].unbind(dim=1)
        tail = ctx.message.get("tail", torch.ones_like(now[0]))
        output = tail * (o["output"] + self._increment(now, before, earlier))
        target = one_hot(batch.labels, outputs.logits.shape[-1]).to(outputs.logits.dtype)
        weights = torch.where(target > 0, self.balance(output)[:, None], self.balance(-output)[:, None])
        costs = weights * binary_cross_entropy_with_logits(outputs.logits, target, reduction="none")
        by_logits = weights * (outputs.logits.detach().sigmoid() - target)
        # ∂loss/∂z is negative for the sample's own class and positive for the others: its sum is the change of e.
        errors = torch.stack([now + _mean_per_class(by_logits, batch), now, before], dim=1)
        return batch.mean(costs.sum(dim=-1)), {"output": output, "errors": tail * errors}

    def balance(self, output: Tensor) -> Tensor:
        """Return f: the weight of the gradients for this controller output."""
        exponent = (-self.slope * output).clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT)
        return 10.0 / (1.0 + 9.0 * torch.exp(exponent))

    def _increment(self, now: Tensor, before: Tensor, earlier: Tensor) -> Tensor:
        derivative = now - 2.0 * before + earlier
        return self.kp * (now - before) + self.ki * now + self.kd * derivative


def _mean_per_class(values: Tensor, batch: Batch) -> Tensor:
    """Average over the samples of each client's batch: `(K, b, C)` to `(K, C)`."""
    if batch.weight is not None:
        values = values * batch.weight[..., None]
    return values.sum(dim=1) / batch.sizes[:, None]
