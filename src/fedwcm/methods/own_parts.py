"""Parts of the model that stay with the client: what their methods share.

A method declares which slices of the model they are. Clients start from the received model with their own parts,
train all of it, upload the increment of the rest, and keep their parts. Their accuracies are those of the model of
all with their own parts (`client_mean`). The parts of x itself stay as they were before round 1, so that its test
accuracy says little. A client that has not taken part yet has those.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fedwcm.core.method import OwnStart, PersonalModels
from fedwcm.core.types import Clients, Context, Layout, ParamSlice, Report, State, Vec

if TYPE_CHECKING:
    from fedwcm.core.method import Method as Base
else:
    Base = object


@dataclass(frozen=True, kw_only=True)
class OwnParts(OwnStart, PersonalModels, Base):
    """Mix-in that keeps parts of the model with the clients. It is a `Method` only for the type checker."""

    @abstractmethod
    def own_slices(self, layout: Layout) -> Sequence[ParamSlice]:
        """Return the parts that stay with the client."""

    def init_client(self, x: Vec, clients: Clients) -> State:
        own = self.own_part(x, clients.layout).repeat(len(clients), 1)
        return {**super().init_client(x, clients), "own": own}

    def start(self, c: State, ctx: Context) -> Vec:
        return self.with_own(ctx.x, c["own"], ctx.layout)

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        upload, report, c = super().finish(w, c, ctx)
        zeros = torch.zeros_like(c["own"])
        delta = self.with_own(upload["delta"], zeros, ctx.layout)
        return {**upload, "delta": delta}, report, {**c, "own": self.own_part(w, ctx.layout)}

    def eval_clients(self, x: Vec, s: State, c: State, layout: Layout) -> Vec:
        return self.with_own(x, c["own"], layout)

    def own_part(self, w: Vec, layout: Layout) -> Vec:
        """Return the parts of these models that stay with the clients, one after the other."""
        return torch.cat([w[..., :0], *(w[..., part.start : part.stop] for part in self.own_slices(layout))], -1)

    def with_own(self, x: Vec, own: Vec, layout: Layout) -> Vec:
        """Return `x`, of all clients or one for each, with these parts: `(K, P)`."""
        models, start = x.expand(len(own), -1).clone(), 0
        for part in self.own_slices(layout):
            end = start + part.stop - part.start
            models[:, part.start : part.stop] = own[:, start:end]
            start = end
        return models
