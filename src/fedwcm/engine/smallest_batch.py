"""The last batch of a pass over a client's data, which may be too small: BatchNorm cannot train on one sample."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedwcm.core.checks import shortened
from fedwcm.core.torch_rng import own_torch_generator
from fedwcm.core.types import Ints, Population
from fedwcm.engine.network import Network

DropLast = bool | Literal["auto"]

NAMED = 10
"""Clients that an error names."""


def smallest_batch(drop_last: DropLast, batch_size: int, network: Network, sample: Tensor) -> int:
    """Return the samples below which the last batch of a pass is dropped; 1 if it never is.

    Args:
        drop_last: the option `local.drop_last`.
        batch_size: the option `local.batch_size`.
        network: the model, which is tried on one sample.
        sample: a few inputs `(b, …)`; their values do not matter.
    """
    if drop_last == "auto":
        return 2 if fails_on_one_sample(network, sample) else 1
    return batch_size if drop_last else 1


def fails_on_one_sample(network: Network, sample: Tensor) -> bool:
    """Return whether the model has a BatchNorm layer that gets one value per channel from a single sample."""
    if not any(isinstance(module, _BatchNorm) for module in network.module.modules()):
        return False
    buffers = {name: buffer.clone() for name, buffer in network.module.named_buffers()}
    network.set_training_mode()
    with torch.no_grad(), own_torch_generator():
        try:
            network(sample[:1].clone(), buffers)
        except ValueError:  # BatchNorm's; whatever else is wrong shows when clients train
            return True
    return False


def require_trainable(samples: Ints, population: Population, network: Network, sample: Tensor) -> None:
    """Raise a ValueError that names the clients with a batch of one sample, if the model cannot train on it."""
    size, kept = population.batch_size, population.batches(samples)
    alone = (samples - (kept - 1) * size == 1) | (size == 1)
    if not alone.any() or not fails_on_one_sample(network, sample):
        return
    clients = alone.nonzero()[0].tolist()
    text = f"client{'s' if len(clients) > 1 else ''} {shortened(clients, NAMED)}"
    raise ValueError(
        f"BatchNorm cannot train on a batch of one sample, which {text} would have (local.batch_size = {size}): "
        f"{_remedy(samples, size, clients)}, or use a model without BatchNorm (model.norm=group for a ResNet)"
    )


def _remedy(samples: Ints, batch_size: int, clients: list[int]) -> str:
    if batch_size == 1:
        return "choose a larger batch size"
    if (samples[clients] == 1).any():
        return "give every client at least two samples"
    return "set local.drop_last=auto, which leaves such a batch out"
