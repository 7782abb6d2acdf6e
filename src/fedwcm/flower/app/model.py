"""The model, built in the same way by the server and the clients of a run."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedwcm.config.schema import Config
from fedwcm.core.batch import SampleStore, Shard
from fedwcm.core.loss import LogitScale
from fedwcm.core.rng import model_seed
from fedwcm.core.torch_rng import own_torch_generator
from fedwcm.engine.evaluate import LabelledTensors
from fedwcm.engine.network import Network
from fedwcm.engine.precision import Precision
from fedwcm.experiment.rounds import choose_kernels, chosen_device

SAMPLED = 4096
"""Entries of a frozen parameter from which its fingerprint is made, at most."""

ModelFactory = Callable[..., nn.Module]
"""Makes the model, the same layers every time; it may take the run's config as `run_config`."""


def network(
    model: ModelFactory, config: Config, device: str | None = None, logit_scale: LogitScale | None = None
) -> Network:
    """Return the model with the initial weights that the run's seed gives, as the simulator would draw them."""
    with own_torch_generator():
        torch.default_generator.manual_seed(model_seed(config.run.seed))
        module = model()
    if not isinstance(module, nn.Module):
        raise ValueError(f"the model function returns a {type(module).__name__}: it must be a torch.nn.Module")
    place = chosen_device(device or config.run.device)
    choose_kernels(place)
    # The precision is not checked: the server, which trains nothing, may have a device that could not train in it.
    return Network(module, place, Precision(config.run.precision), logit_scale=logit_scale)


def architecture(network: Network) -> list[str]:
    """Return the model's layers and tensors, one line each: what server and clients must have in common."""
    # On a CPU some convolutions are of a subclass that computes the same.
    layers = [(n, type(m).__name__.removeprefix("Subsampled")) for n, m in network.module.named_modules() if n]
    tensors = [(n, str(tuple(t.shape))) for n, t in [*network.parameters, *network.buffers]]
    return [f"{name}: {what}" for name, what in [*layers, *tensors]]


def frozen_parts(network: Network) -> dict[str, Tensor]:
    """Return entries of each parameter that is not trained: they are never sent, so all must have the same."""
    frozen = [(n, p.detach().reshape(-1)) for n, p in network.module.named_parameters() if not p.requires_grad]
    return {name: values[:: 1 + len(values) // SAMPLED].double().cpu() for name, values in frozen}


def fingerprint(entries: Tensor) -> float:
    """Return one number for some entries; where their last digits differ, as between machines, it hardly does."""
    return float(entries @ torch.cos(torch.arange(len(entries), dtype=torch.float64)))


def class_scores(network: Network, inputs: Tensor) -> Tensor:
    """Return the model's output on a batch: one row per sample, one column per class, without gradients."""
    network.module.eval()
    with torch.no_grad():
        logits, _ = network(inputs)
    return logits


Samples = tuple[Any, Any]
"""Inputs and labels: arrays or tensors, the inputs as the model takes them."""


def tensors(samples: Samples, device: torch.device) -> LabelledTensors:
    """Return inputs in the precision of the models (whole numbers stay whole), labels as whole numbers."""
    inputs, labels = torch.as_tensor(samples[0]), torch.as_tensor(samples[1])
    if inputs.is_floating_point():
        inputs = inputs.float()
    if labels.dim() != 1 or labels.is_floating_point() or len(labels) != len(inputs) or not len(labels):
        raise ValueError(
            f"labels are {labels.dtype} of shape {tuple(labels.shape)} for inputs of shape {tuple(inputs.shape)}: "
            "there must be one whole number per sample, and at least one sample"
        )
    return LabelledTensors(inputs.to(device), labels.long().to(device))


def shard(samples: LabelledTensors, classes: int, numbers: Any = None) -> Shard:
    """Return one client's data; `numbers` are those of its samples, from 0 if not given."""
    labels = samples.labels.cpu().numpy()
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"labels are from {labels.min()} to {labels.max()}: they must be from 0 to {classes - 1}")
    rows = np.arange(len(labels))
    ids = torch.as_tensor(rows if numbers is None else numbers).long().to(samples.labels.device)
    if ids.shape != samples.labels.shape:
        raise ValueError(f"there are {len(ids)} numbers of samples for {len(labels)} samples")
    return Shard(SampleStore(samples.inputs, samples.labels, ids, labels), rows)
