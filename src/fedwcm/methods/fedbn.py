"""FedBN: the layers that normalise stay with the client, and all others are averaged.

Li, Jiang, Zhang, Kamp, Dou. FedBN: Federated Learning on Non-IID Features via Local Batch Normalization. ICLR
2021. Sources: med-air/FedBN (the authors' code).

    w_k = (x without its normalisation, own scales and shifts of k), with k's own running statistics

It is meant for clients whose inputs differ: other scanners, sensors, languages. The accuracies of the clients are
those of x with their own normalisation and statistics (`client_mean`). x's scales and shifts stay as they were
before round 1, its statistics are averaged: the test accuracy is that of a client without a normalisation of its
own.

The authors mean BatchNorm. GroupNorm and LayerNorm, which have no statistics, are treated alike: the ResNets of
this package have GroupNorm unless `model.norm=batch`. Departure: clients send zeros in place of what they keep.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedwcm.core.types import Layout, ParamSlice
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.own_parts import OwnParts

NO_NORM = "method.name = 'fedbn' needs a model with layers that normalise, such as resnet8: this one has none"


@dataclass(frozen=True, kw_only=True)
class FedBN(OwnParts, FedAvg):
    """FedAvg of all layers but those that normalise."""

    name: ClassVar[str] = "fedbn"
    own_buffers: ClassVar[bool] = True

    def check_model(self, layout: Layout) -> None:
        if not layout.norm_slices:
            raise ValueError(NO_NORM)

    def own_slices(self, layout: Layout) -> Sequence[ParamSlice]:
        return layout.norm_slices
