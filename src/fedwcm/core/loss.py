"""The interface of a loss: a function of the model's outputs on a mini-batch.

Like a method, a loss is a frozen dataclass with pure hooks that see a block of K clients. It may keep client state
(the engine stores it next to the method's) and may read all of a client's data once per round.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedwcm.core.batch import Batch, Outputs
from fedwcm.core.local_data import LocalData
from fedwcm.core.types import Clients, Context, Population, State


@dataclass(frozen=True, kw_only=True)
class Loss(ABC):
    """Hooks of a loss. A subclass defines `__call__`."""

    name: ClassVar[str] = ""

    def init_client(self, clients: Clients, population: Population) -> State:
        """Return the clients' own state at their first participation, one row per client."""
        return {}

    def prepare(self, local: LocalData, ctx: Context) -> State:
        """Return what `__call__` finds in `ctx.prepared`, one row per client; called once per round."""
        return {}

    @abstractmethod
    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        """Return each client's loss `(K,)` on its batch, and the client state after this step."""


@dataclass(frozen=True, kw_only=True)
class LogitLoss(Loss):
    """A loss of the logits alone with an explicit gradient, which saves the engine a pass through autograd.

    A subclass defines only `with_gradient`.
    """

    @abstractmethod
    def with_gradient(self, logits: Tensor, batch: Batch, ctx: Context) -> tuple[Tensor, Tensor]:
        """Return each client's loss `(K,)`, and its gradient with respect to the logits `(K, b, C)`.

        Neither is part of an autograd graph. The gradient is new: the caller may change it in place.
        """

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        """Return the loss as a term that autograd can differentiate once: its first-order Taylor expansion."""
        logits = outputs.logits
        loss, gradient = self.with_gradient(logits.detach(), batch, ctx)
        return loss + (gradient * (logits - logits.detach())).sum(dim=(-2, -1)), o
