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
class Evaluation:
    """`confusion[i, j]` samples of class i were predicted as class j; `loss` is the mean cross-entropy.

    `correct` tells of each sample whether its class was predicted.
    """

    confusion: Ints
    loss: float
    correct: NDArray[np.bool_]


def evaluate(network: Network, x: Vec, buffers: Vec, inputs: Inputs, labels: Tensor, classes: int) -> Evaluation:
    """Run the model over all samples, in evaluation mode."""
    network.point_parameters(x)
    network.point_buffers(buffers.clone())
    network.module.eval()
    cells = torch.zeros(classes * classes, dtype=torch.int64, device=labels.device)
    total = torch.zeros((), dtype=torch.float64)
    correct = torch.zeros(len(labels), dtype=torch.bool, device=labels.device)
    with torch.no_grad():
        for start in range(0, len(labels), CHUNK):
            y = labels[start : start + CHUNK]
            logits, _ = network(inputs[start : start + CHUNK])
            predicted = logits.argmax(dim=-1)
            correct[start : start + CHUNK] = predicted == y
            cells += torch.bincount(y * classes + predicted, minlength=classes * classes)
            total += cross_entropy(logits, y, reduction="sum").cpu().double()
    confusion: Ints = cells.reshape(classes, classes).cpu().numpy()
    return Evaluation(confusion, float(total) / len(labels), correct.cpu().numpy())
