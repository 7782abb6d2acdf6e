"""The interface of a local objective: what a mini-batch costs, as a function of the model's outputs.

Like a method, an objective is a frozen dataclass with pure hooks that see a block of K clients. It may keep
client state (the engine stores it beside the method's) and may look at the client's data once a round.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from fedwcm.core.types import Clients, Context, Population, State, Vec
from fedwcm.engine.batches import Batch

if TYPE_CHECKING:
    from fedwcm.engine.local_data import LocalData


@dataclass(frozen=True, eq=False)
class Outputs:
    """The models at one point, on one batch: logits `(K, b, C)` and what leads to them.

    `features` is the input of the final linear layer, `head(features)` applies that layer to other features,
    and `at(x)` is the view of another model, such as the received one, on the same batch, without gradient.
    """

    logits: Tensor
    features: Tensor
    head: Callable[[Tensor], Tensor]
    at: Callable[[Vec], "Outputs"]


@dataclass(frozen=True, kw_only=True)
class Loss(ABC):
    """Hooks of an objective. A subclass defines `loss`."""

    name: ClassVar[str] = ""

    def init_client(self, clients: Clients, population: Population) -> State:
        """The clients' own state at their first participation, one row a client."""
        return {}

    def prepare(self, local: "LocalData", ctx: Context) -> State:
        """Once a round, before the first step: what `loss` finds in `ctx.prepared`, one row a client."""
        return {}

    def __init_subclass__(cls) -> None:
        """Whoever changes the loss loses an inherited closed form, which would be that of another loss."""
        super().__init_subclass__()
        if "loss" in vars(cls) and "closed_form" not in vars(cls):
            cls.closed_form = Loss.closed_form  # type: ignore[method-assign]

    def closed_form(self, view: Outputs, batch: Batch, ctx: Context) -> tuple[Tensor, Tensor] | None:
        """For objectives of the logits alone that know it: `loss`, and its gradient with respect to the logits.

        Saves the way through autograd, and changes nothing else.
        """
        return None

    @abstractmethod
    def loss(self, view: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        """Each client's loss `(K,)` on its batch, and the client state after this step."""
