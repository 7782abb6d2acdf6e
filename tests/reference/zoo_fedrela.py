"""FedReLa in NumPy: labels changed once, from a late model, and slower steps from then on."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .zoo_losses import Labels, Vector, cross_entropy, log_softmax
from .zoo_shared import Cohorts
from .zoo_two_layer import Batch, Clients, Data, TwoLayer

LEAST_DEVIATION = 1e-6  # a class's standard deviation counts as at least this


def flip_rates(p: Vector, y: Labels, threshold: float) -> Vector:
    """Rates at which each class takes each sample of a client, of probabilities p (n, C); some are below 0.

    t_c is the largest z_c that floor(threshold n) others exceed. Counts are the client's own, with absent classes.
    """
    n, classes = p.shape
    z, counts = np.zeros((n, classes)), np.array([(y == c).sum() for c in range(classes)])
    for i in range(n):
        own = p[y == y[i]]
        mean = own.sum(axis=0) / len(own)
        deviation = np.sqrt(((own - mean) ** 2).sum(axis=0) / len(own))
        z[i] = (p[i] - mean) / np.maximum(deviation, LEAST_DEVIATION)
    above = min(math.floor(threshold * n), n - 1)
    t = np.array([sorted(z[:, c], reverse=True)[above] for c in range(classes)])
    spread = int(counts.max() - counts.min())
    rare = 1 - (counts - counts.min()) / spread if spread else np.ones(classes)
    return np.array([np.tanh(z[i] - t) * np.maximum(0.0, rare - rare[y[i]]) for i in range(n)])


def changed_labels(p: Vector, y: Labels, threshold: float, uniforms: Vector) -> Labels:
    """The class with the largest rate among those whose rate is above its uniform number (n, C), or else y."""
    labels = y.copy()
    for i, rates in enumerate(flip_rates(p, y, threshold)):
        taking = [c for c in range(len(rates)) if rates[c] > uniforms[i, c]]
        if taking:
            labels[i] = max(taking, key=lambda c: rates[c])
    return labels


class RelabelledRun(NamedTuple):
    """The models after each round, the model that labels are changed by, and the changed labels by client."""

    models: list[Vector]
    labeller: list[Vector]
    labels: dict[int, Labels]


def run_fedrela(
    x0: ArrayLike,
    net: TwoLayer,
    data: Data,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    rounds: int,
    uniforms: Callable[[int], Vector],
    start: float = 0.8,
    slowdown: float = 0.1,
    threshold: float = 0.05,
    **local: Any,
) -> RelabelledRun:
    """FedReLa (Hu et al. 2026), as released but for one pass without augmentation. The mean is over samples.

    `rounds` are those of the whole run, of which `start` is a share; the first late one is the first that is not
    before it. `uniforms(k)` are a client's numbers: they are the same in every round, and so are its labels.
    """
    clients, run = Clients(data, sizes, cohorts, **local), RelabelledRun([], [], {})
    first = math.ceil(start * rounds - 1e-9)

    def gradient(k: int, batch: Batch, y: Vector) -> Vector:
        labels = run.labels[k][batch.at] if k in run.labels else batch.labels
        return net.backward(y, batch.inputs, cross_entropy(net.logits(y, batch.inputs), labels)[1])

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        kept = first == 0 or any(len(clients.fed.cohorts[q]) for q in range(first - 1, r))
        if kept:  # the server has had an answer since the round before the first late one
            eta = slowdown * eta
            run.labeller[:] = run.labeller or [x]
            for k in cohort:
                p = np.exp(log_softmax(net.logits(run.labeller[0], data[k][0])))
                run.labels[k] = changed_labels(p, data[k][1], threshold, uniforms(k))
        return clients.merge(x, {k: clients.train(k, r, eta, x, partial(gradient, k)) for k in cohort})

    run.models.extend(clients.fed.run(x0, one_round))
    return run
