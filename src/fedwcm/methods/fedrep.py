"""FedRep: FedPer whose clients first fit their own classifier, and then the layers below it.

Collins, Hassani, Mokhtari, Shakkottai. Exploiting Shared Representations for Personalized Federated Learning. ICML
2021. Sources: lgcollins/FedRep (the authors' code).

    the first head_share of a client's steps move its head alone, the others the layers below it alone

The head stays with the client as in `fedper`, where the accuracies are explained. The authors take ten epochs for
the head and one for the body with most data: head_share is 0.9. Below 1 it leaves the body at least one step.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from fedwcm.core.method import OptimizerRule
from fedwcm.core.ranges import Share
from fedwcm.core.types import Clients, Context, Floats, GradientOracle, Ints, Report, State, Vec
from fedwcm.methods.fedper import FedPer


@dataclass(frozen=True, kw_only=True)
class FedRep(FedPer):
    """FedPer with alternating local steps.

    Args:
        head_share: share of a client's steps, the first ones, that move its classifier alone.
    """

    name: ClassVar[str] = "fedrep"
    optimizers: ClassVar[OptimizerRule] = OptimizerRule("plain", "momentum would go on moving what is held fixed")

    head_share: Share = 0.9

    def init_client(self, x: Vec, clients: Clients) -> State:
        return {**super().init_client(x, clients), "step": x.new_zeros(len(clients), 1)}

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        head = self.with_own(torch.zeros_like(ctx.x), torch.ones_like(c["own"][:1]), ctx.layout)
        fits_head = c["step"] < ctx.constant("fedrep", lambda: self._head_steps(ctx.clients.steps))[:, None]
        return grad(w) * torch.where(fits_head, head, 1.0 - head), {**c, "step": c["step"] + 1.0}

    def _head_steps(self, steps: Ints) -> Floats:
        most = steps if self.head_share == 1 else steps - 1
        return np.asarray(np.minimum(steps * self.head_share, most), dtype=np.float64)

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        return super().finish(w, {**c, "step": torch.zeros_like(c["step"])}, ctx)
