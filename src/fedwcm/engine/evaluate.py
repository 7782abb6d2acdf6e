"""Evaluation of a model: the confusion matrix and the mean loss, from which all metrics are derived."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedwcm.core.batch import Inputs
from fedwcm.core.types import Ints, Vec
from fedwcm.engine.network import Network

CHUNK = 500
"""Samples per forward pass; affects memory only."""


@dataclass(frozen=True, eq=False)
class LabelledTensors:
    """Samples to evaluate on."""

    inputs: Inputs
    labels: Tensor


@dataclass(frozen=True, eq=False)
class Evaluation:
    """`confusion[i, j]` samples of class i were predicted as class j; `loss` is the mean cross-entropy.

    `correct` tells of each sample whether its class was predicted.
    """

    confusion: Ints
    loss: float
    correct: NDArray[np.bool_]


def evaluate(network: Network, x: Vec, buffers: Vec, inputs: Inputs, labels: Tensor, classes: int) -> Evaluation:
    """Run the model over all samples, in evaluation mode."""
    network.point_parameters(x.clone())  # a copy: nn.Embedding(max_norm=…) writes to its weights when it is run
    network.point_buffers(buffers.clone())
    network.module.eval()
    predicted = torch.zeros_like(labels)
    losses = []
    with torch.no_grad():
        for start in range(0, len(labels), CHUNK):
            chunk = slice(start, start + CHUNK)
            logits, _ = network(inputs[chunk])
            predicted[chunk] = logits.argmax(dim=-1)
            losses.append(cross_entropy(logits, labels[chunk], reduction="sum"))
    # All is read at the end: after every chunk, the device would have to finish its work first.
    confusion = torch.bincount(labels * classes + predicted, minlength=classes * classes).reshape(classes, classes)
    total: float = sum(torch.stack(losses).tolist())
    return Evaluation(confusion.cpu().numpy(), total / len(labels), (predicted == labels).cpu().numpy())
