"""FedPer: the classifier stays with the client, and the layers below it are averaged.

Arivazhagan, Aggarwal, Singh, Choudhary. Federated Learning with Personalization Layers. 2019.

    w_k = (body of x, own head of k)      clients train all of it, send the body's increment and keep the head

The accuracies of the clients are those of x's body with their own heads (`client_mean`). x's own head stays as it
was before round 1, so that the test accuracy says nothing here. A client that has not taken part yet has that
head, too.

Departure: clients send zeros in the head's place.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedwcm.core.types import Layout, ParamSlice
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.head import NO_HEAD
from fedwcm.methods.own_parts import OwnParts


@dataclass(frozen=True, kw_only=True)
class FedPer(OwnParts, FedAvg):
    """FedAvg of all layers but the classifier."""

    name: ClassVar[str] = "fedper"

    def check_model(self, layout: Layout) -> None:
        if not layout.head_slices:
            raise ValueError(NO_HEAD)

    def own_slices(self, layout: Layout) -> Sequence[ParamSlice]:
        return layout.head_slices
