"""FedYoYo in NumPy: effective class sizes at the server, and a loss on two views of each sample."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .zoo_losses import Labels, Loss, Vector, cross_entropy, log_softmax
from .zoo_shared import Cohorts
from .zoo_two_layer import Batch, Clients, Data, TwoLayer

Blank = Callable[[int, int, int, tuple[int, ...]], NDArray[np.bool_]]  # of (client, round, step, shape)


def effective_sizes(features: Vector, labels: Labels, classes: int, group: int) -> Vector:
    """Of each class, the sum over groups of 1 / (a^T R a), at most its n samples in the group.

    R are the cosines between its features, centred on the client's mean of the class, and a = (1/n, ..., 1/n).
    A centred feature of 0 has the cosine 0 with all, itself included. Groups are consecutive samples.
    """
    centred, sizes = np.array(features, dtype=np.float64), np.zeros(classes)
    for c in np.unique(labels):
        centred[labels == c] -= features[labels == c].mean(axis=0)
    for start in range(0, len(labels), group):
        near = labels[start : start + group]
        for c in np.unique(near):
            f = centred[start : start + group][near == c]
            n, length = len(f), np.linalg.norm(f, axis=1)
            both = np.outer(length, length)
            cosines = np.divide(f @ f.T, both, out=np.zeros_like(both), where=both > 0)
            a = np.full(n, 1 / n)
            sizes[c] += 1 / max(float(a @ cosines @ a), 1 / n)
    return sizes


def two_views(weak: Vector, strong: Vector, y: Labels, distill: float, temperature: float) -> tuple[Loss, Vector]:
    """CE over both views + distill KL(softmax(weak/T) || softmax(strong/T)): value, gradients by weak and strong.

    The divergence is the mean over the samples whose weak view is right, 0 without any, and no gradient of it
    goes to the weak view. There is no T^2.
    """
    value, d = cross_entropy(np.concatenate([weak, strong]), np.concatenate([y, y]))
    d_weak, d_strong = d[: len(y)], d[len(y) :]
    right = np.flatnonzero(weak.argmax(axis=1) == y)
    if len(right):
        log_t, log_s = log_softmax(weak[right] / temperature), log_softmax(strong[right] / temperature)
        value += distill * float((np.exp(log_t) * (log_t - log_s)).sum(axis=1).mean())
        d_strong[right] += distill * (np.exp(log_s) - np.exp(log_t)) / temperature / len(right)
    return (value, d_weak), d_strong


@dataclass(frozen=True)
class YoYoLoss:
    """The options of the loss. A share is at least `least`, the share of half a sample of all."""

    tau: float = 1.5
    gamma: float = 0.1
    distill: float = 4.0
    temperature: float = 1.5
    warmup: int = 50

    def shift(self, global_share: Vector, own: Vector, least: float) -> Vector:
        """tau log pi, with pi = (1 - gamma) pi_global + gamma pi_client, of the client's counts."""
        shares = (1 - self.gamma) * np.maximum(global_share, least) + self.gamma * own / own.sum()
        return np.asarray(self.tau * np.log(np.maximum(shares, least)))

    def weight(self, r: int) -> float:
        """distill min(1, r / warmup), the first round being 0."""
        return self.distill * (min(1.0, r / self.warmup) if self.warmup else 1.0)


@dataclass(frozen=True)
class TwoViews:
    """A local step's gradient, of a client in a round; the values of the loss are added to `seen`."""

    net: TwoLayer
    temperature: float
    weight: float
    shift: Vector
    blank: Callable[[int, tuple[int, ...]], NDArray[np.bool_]]
    seen: list[float] = field(default_factory=list)

    def __call__(self, batch: Batch, y: Vector) -> Vector:
        strong = np.where(self.blank(batch.step, batch.inputs.shape), 0.0, batch.inputs)
        u_weak, u_strong = (self.net.logits(y, inputs) + self.shift for inputs in (batch.inputs, strong))
        (value, d_weak), d_strong = two_views(u_weak, u_strong, batch.labels, self.weight, self.temperature)
        self.seen.append(value)
        return self.net.backward(y, batch.inputs, d_weak) + self.net.backward(y, strong, d_strong)


class YoYoRun(NamedTuple):
    """After each round with an answer, the training loss and the effective sizes; the models after each."""

    models: list[Vector]
    losses: list[float]
    sizes: list[Vector]


def run_fedyoyo(
    x0: ArrayLike,
    net: TwoLayer,
    data: Data,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    blank: Blank,
    loss: YoYoLoss,
    group: int = 32,
    memory: float = 0.9,
    measured: bool = True,
    **local: Any,
) -> YoYoRun:
    """FedYoYo (Yan et al. 2025). The mean is over samples.

    The first round's sizes are taken as they are; memory is of the rounds after it, as released. Without
    `measured`, the class distribution is that of all samples.
    """
    clients, run = Clients(data, sizes, cohorts, **local), YoYoRun([], [], [])
    counts = np.array([np.bincount(labels, minlength=net.classes) for _, labels in data], dtype=np.float64)
    least = 0.5 / counts.sum()

    def measure(x: Vector, cohort: list[int]) -> Vector:
        found = [effective_sizes(net.features(x, data[k][0]), data[k][1], net.classes, group) for k in cohort]
        now = np.asarray(1 + np.sum(found, axis=0))
        return memory * run.sizes[-1] + (1 - memory) * now if run.sizes else now

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        run.sizes.append(measure(x, cohort))
        shares = run.sizes[-1] / run.sizes[-1].sum() if measured else counts.sum(axis=0) / counts.sum()
        weight, steps = loss.weight(r), dict[int, TwoViews]()
        for k in cohort:
            shift = loss.shift(shares, counts[k], least)
            steps[k] = TwoViews(net, loss.temperature, weight, shift, partial(blank, k, r))
        trained = {k: clients.train(k, r, eta, x, step) for k, step in steps.items()}
        run.losses.append(float(np.mean([np.mean(step.seen) for step in steps.values()])))
        return clients.merge(x, trained)

    run.models.extend(clients.fed.run(x0, one_round))
    return run
