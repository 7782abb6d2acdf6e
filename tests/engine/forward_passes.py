"""Models, inputs and losses for the tests of forward passes, and one pass beside the other."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from fedwcm.core.batch import Outputs
from fedwcm.core.types import Vec
from fedwcm.engine.forward import Forward, SequentialForward, VmapForward
from fedwcm.engine.network import Network

from ..factories import CLASSES, FEATURES, seeded

K, BATCH = 3, 5
EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-14}

Loss = Callable[[Outputs, Vec], Tensor]
Build = Callable[[], nn.Module]
Way = Callable[[Network], Forward]


def models_and_inputs(network: Network, shape: tuple[int, ...] = (FEATURES,)) -> tuple[Vec, Tensor]:
    rng = torch.Generator().manual_seed(3)
    x = network.initial()[0]
    w = x + 0.3 * torch.randn(K, len(x), generator=rng, dtype=x.dtype)
    return w, torch.randn(K, BATCH, *shape, generator=rng, dtype=x.dtype)


def gradient(forward: Forward, loss: Tensor) -> Vec:
    return forward.backward((loss, torch.ones_like(loss))).vector()


def both(
    build: Build, loss: Loss, shape: tuple[int, ...] = (FEATURES,), way: Way = VmapForward
) -> tuple[list[Tensor], list[Tensor]]:
    """Loss, gradient and logits of three clients, stacked in this way and one by one."""
    network = Network(build())
    w, inputs = models_and_inputs(network, shape)
    x = network.initial()[0]
    stacked = way(network)
    outputs = stacked(w, inputs, track=True)
    value = loss(outputs, x)
    together = [value.detach(), gradient(stacked, value), outputs.logits.detach()]
    rows = []
    single = SequentialForward(Network(build()))
    for k in range(K):
        single.start(x, torch.zeros(0))
        outputs = single(w[k : k + 1], inputs[k : k + 1], track=True)
        value = loss(outputs, x)
        rows.append([value.detach(), gradient(single, value), outputs.logits.detach()])
    return together, [torch.cat(column) for column in zip(*rows, strict=True)]


def first_class(outputs: Outputs, _: Vec) -> Tensor:
    return -log_softmax(outputs.logits, dim=-1)[..., 0].mean(dim=-1)


def of_features(outputs: Outputs, _: Vec) -> Tensor:
    return (outputs.features**2).sum(dim=-1).mean(dim=-1)


def two_convolutions() -> nn.Module:
    """Differentiating the second one reads its weight when the gradient is taken, not before."""
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Conv2d(2, 2, 2), nn.Flatten(), nn.Linear(2, CLASSES)
        )
    )
