"""Evaluation of a model: what it made of each sample, from which all metrics are derived."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import starmap
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import nll_loss

from fedwcm.core.batch import Inputs
from fedwcm.core.types import Ints, Vec
from fedwcm.engine.backends.plan import threads
from fedwcm.engine.fast.linear_stack import LinearLayer, linear_layers, run_layers
from fedwcm.engine.fast.products import prefers_onednn
from fedwcm.engine.network import Network

T = TypeVar("T")
Columns = tuple[Tensor, Tensor, Tensor, Tensor]

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

    def measure_at(start: int, logits: Tensor) -> Columns:
        return _measure_chunk(logits, labels[start : start + CHUNK])

    return _join(_map_chunks(network, x, buffers, inputs, measure_at), labels, classes)


def predict_chunks(network: Network, x: Vec, buffers: Vec, inputs: Inputs) -> Iterator[Tensor]:
    """Yield the logits of the model, in evaluation mode, chunk by chunk."""
    return _map_chunks(network, x, buffers, inputs, lambda start, logits: logits)


def measure(chunks: Iterable[Tensor], labels: Tensor, classes: int) -> Evaluation:
    """Return what these logits, in chunks of `CHUNK` samples, make of samples with these labels."""
    with torch.no_grad():
        return _join(starmap(_measure_chunk, zip(chunks, labels.split(CHUNK), strict=True)), labels, classes)


def _map_chunks(
    network: Network, x: Vec, buffers: Vec, inputs: Inputs, use: Callable[[int, Tensor], T]
) -> Iterator[T]:
    """Yield what becomes of each chunk, given the number of its first sample and its logits.

    Linear layers run on as many chunks at a time as there are cores, each on one: all cores on one chunk would
    wait for each other after every layer, which is soon done. Such models keep nothing between two chunks.
    """
    layers = linear_layers(network) if x.is_cpu and network.size >= LARGE else None
    cores = torch.get_num_threads() if layers else 1
    with threads(1 if cores > 1 else None):
        network.point_parameters(x.clone())  # nn.Embedding(max_norm=…) writes to its weights when it is run
        network.point_buffers(buffers.clone())
        network.module.eval()
        predict = partial(_predict, network, layers, x[None]) if layers and prefers_onednn() else network.predict

        @torch.no_grad()
        def run(start: int) -> T:
            return use(start, predict(inputs[start : start + CHUNK]))

        starts = range(0, len(inputs), CHUNK)
        yield from map(run, starts) if cores == 1 else _map_on_cores(run, starts, cores)


def _map_on_cores(function: Callable[[int], T], arguments: Sequence[int], cores: int) -> list[T]:
    """Return what the function makes of each argument; this thread and others take one after the other."""
    results: dict[int, T] = {}
    waiting = iter(arguments)  # of which a thread takes the next without a lock

    def work() -> None:
        for argument in waiting:
            results[argument] = function(argument)

    with ThreadPoolExecutor(cores - 1, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        others = [pool.submit(work) for _ in range(cores - 1)]
        work()
        for other in others:
            other.result()
    return [results[argument] for argument in arguments]


def _predict(network: Network, layers: Sequence[LinearLayer], w: Vec, inputs: Tensor) -> Tensor:
    logits, features = run_layers(layers, w, inputs[None])
    return network.logit_scale(logits[0], features[0])


def _measure_chunk(logits: Tensor, labels: Tensor) -> Columns:
    """Return the predicted classes, their probabilities, the losses, and the sum of these."""
    shares = logits.mT.log_softmax(dim=0)  # along a short last axis it takes six times as long
    losses, total = (nll_loss(shares.mT, labels, reduction=how) for how in ("none", "sum"))
    return logits.argmax(dim=-1), shares.amax(dim=0).exp(), losses, total[None]


def _join(chunks: Iterable[Columns], labels: Tensor, classes: int) -> Evaluation:
    # All is read at the end: after every chunk, the device would have to finish its work first.
    columns = list(chunks)
    predicted, confidence, losses, totals = (torch.cat(parts).cpu() for parts in zip(*columns, strict=True))
    arrays = (labels.cpu().numpy(), predicted.numpy(), confidence.float().numpy(), losses.float().numpy())
    return Evaluation(*arrays, sum(totals.tolist()) / len(labels), classes)
