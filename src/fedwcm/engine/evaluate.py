"""Evaluation of a model: what it made of each sample, from which all metrics are derived."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import nll_loss

from fedwcm.core.batch import Inputs
from fedwcm.core.types import Ints, Vec
from fedwcm.engine.backends.plan import threads
from fedwcm.engine.fast.linear_stack import LinearStack, linear_layers
from fedwcm.engine.fast.products import prefers_onednn
from fedwcm.engine.network import Network

CHUNK = 500
"""Samples per forward pass; affects memory only."""

LARGE = 2**16
"""Parameters from which a stack of linear layers is evaluated by its own products where these are faster."""


@dataclass(frozen=True, eq=False)
class LabelledTensors:
    """Samples to evaluate on."""

    inputs: Inputs
    labels: Tensor


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A model on labelled samples.

    Args:
        labels, predicted: the class of each sample, and the most probable one.
        confidence: probability of the most probable class.
        losses: cross-entropy of each sample: minus the log of the probability of its class.
        loss: their mean.
        classes: number of classes.
    """

    labels: Ints
    predicted: Ints
    confidence: NDArray[np.float32]
    losses: NDArray[np.float32]
    loss: float
    classes: int

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Whether the class of each sample was predicted."""
        hits: NDArray[np.bool_] = self.predicted == self.labels
        return hits

    @cached_property
    def confusion(self) -> Ints:
        """`confusion[i, j]` samples of class i were predicted as class j."""
        cells = np.bincount(self.labels * self.classes + self.predicted, minlength=self.classes**2)
        return cells.reshape(self.classes, self.classes)


def evaluate(network: Network, x: Vec, buffers: Vec, inputs: Inputs, labels: Tensor, classes: int) -> Evaluation:
    """Run the model over all samples, in evaluation mode."""
    return measure(predict_chunks(network, x, buffers, inputs), labels, classes)


def predict_chunks(network: Network, x: Vec, buffers: Vec, inputs: Inputs) -> Iterator[Tensor]:
    """Yield the logits of the model, in evaluation mode, chunk by chunk.

    Linear layers run on as many chunks at a time as there are cores, each on one: all cores on one chunk would
    wait for each other after every layer, which is soon done. Such models keep nothing between two chunks.
    """
    linear = x.is_cpu and network.size >= LARGE and bool(linear_layers(network))
    cores = torch.get_num_threads() if linear else 1
    with threads(1 if cores > 1 else None):
        network.point_parameters(
            x.clone()
        )  # a copy: nn.Embedding(max_norm=…) writes to its weights when it is run
        network.point_buffers(buffers.clone())
        network.module.eval()
        predict = partial(_predict_stacked, network, x[None]) if linear and prefers_onednn() else network.predict

        @torch.no_grad()
        def run(start: int) -> Tensor:
            return predict(inputs[start : start + CHUNK])

        starts = range(0, len(inputs), CHUNK)
        if cores == 1:
            yield from map(run, starts)
            return
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield from pool.map(run, starts)


def _predict_stacked(network: Network, x: Vec, inputs: Tensor) -> Tensor:
    outputs = LinearStack(network)(x, inputs[None], track=False)
    return network.logit_scale(outputs.logits[0], outputs.features[0])


def measure(chunks: Iterable[Tensor], labels: Tensor, classes: int) -> Evaluation:
    """Return what these logits, in chunks of `CHUNK` samples, make of samples with these labels."""
    columns: list[tuple[Tensor, ...]] = []
    with torch.no_grad():
        for logits, actual in zip(chunks, labels.split(CHUNK), strict=True):
            shares = logits.log_softmax(dim=-1)
            losses, total = (nll_loss(shares, actual, reduction=how) for how in ("none", "sum"))
            columns.append((logits.argmax(dim=-1), shares.amax(dim=-1).exp(), losses, total[None]))
    # All is read at the end: after every chunk, the device would have to finish its work first.
    predicted, confidence, losses, totals = (torch.cat(parts).cpu() for parts in zip(*columns, strict=True))
    arrays = (labels.cpu().numpy(), predicted.numpy(), confidence.float().numpy(), losses.float().numpy())
    return Evaluation(*arrays, sum(totals.tolist()) / len(labels), classes)
