"""FedPer: the classifier stays with the client, and the layers below it are averaged.

Arivazhagan, Aggarwal, Singh, Choudhary. Federated Learning with Personalization Layers. 2019.

    w_k = (body of x, own head of k)      clients train all of it, send the body's increment and keep the head

The accuracies of the clients are those of x's body with their own heads (`client_mean`). x's own head stays as it
was before round 1, so that the test accuracy says nothing here. A client that has not taken part yet has that
head, too.

Departures: clients store a whole model, of which the head is used, and send zeros in its place.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.core.method import OwnStart, PersonalModels
from fedwcm.core.types import Clients, Context, Layout, Report, State, Vec
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.head import NO_HEAD


@dataclass(frozen=True, kw_only=True)
class FedPer(OwnStart, PersonalModels, FedAvg):
    """FedAvg of all layers but the classifier."""

    name: ClassVar[str] = "fedper"

    def init_client(self, x: Vec, clients: Clients) -> State:
        return {"own": x.repeat(len(clients), 1)}

    def start(self, c: State, ctx: Context) -> Vec:
        return with_parts(ctx.x, c["own"], ctx.layout)

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        received = with_parts(ctx.x, w, ctx.layout)
        return {"delta": w - received}, {}, {**c, "own": w.clone()}

    def eval_clients(self, x: Vec, s: State, c: State, layout: Layout) -> Vec:
        return with_parts(x, c["own"], layout)


def with_parts(x: Vec, own: Vec, layout: Layout) -> Vec:
    """Return `x` with the heads of these models, `(K, P)`."""
    if not layout.head_slices:
        raise ValueError(NO_HEAD)
    models = x.repeat(len(own), 1)
    for part in layout.head_slices:
        models[:, part.start : part.stop] = own[:, part.start : part.stop]
    return models
