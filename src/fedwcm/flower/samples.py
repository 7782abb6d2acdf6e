"""Convert the samples that an app provides to the tensors and shards that the engine takes."""

from typing import Any

import numpy as np
import torch

from fedwcm.core.batch import SampleStore, Shard
from fedwcm.engine.evaluate import LabelledTensors

Samples = tuple[Any, Any]
"""Inputs and labels: arrays or tensors, the inputs as the model takes them."""


def tensors(samples: Samples, device: torch.device) -> LabelledTensors:
    """Inputs in the precision of the models (whole numbers stay whole), labels as whole numbers."""
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
    """One client's data; `numbers` are those of its samples, from 0 if not given."""
    labels = samples.labels.cpu().numpy()
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"labels are from {labels.min()} to {labels.max()}: they must be from 0 to {classes - 1}")
    rows = np.arange(len(labels))
    ids = torch.as_tensor(rows if numbers is None else numbers).long().to(samples.labels.device)
    if ids.shape != samples.labels.shape:
        raise ValueError(f"there are {len(ids)} numbers of samples for {len(labels)} samples")
    return Shard(SampleStore(samples.inputs, samples.labels, ids, labels), rows)
