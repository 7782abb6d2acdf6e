"""FedIC in NumPy: a calibrated ensemble of the clients' models, distilled into their average by the server.

The calibration's gradient is written out by the chain rule, sample by sample where that is plainer.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .zoo_losses import Labels, Vector, log_softmax, one_hot
from .zoo_shared import Cohorts
from .zoo_two_layer import Batch, Clients, Data, TwoLayer

Rows = Iterator[Labels]


@dataclass(frozen=True)
class Server:
    """The server's samples, its options, and the rows of its batches: (labelled, soft) of a round."""

    inputs: Vector
    labels: Labels
    rows: Callable[[int], tuple[Rows, Rows, Rows, Rows]]
    steps: int
    lr: float
    temperature: float
    soft: float
    decay: float = 2e-4


def adam(w: Vector, gradients: Callable[[Vector], Vector], steps: int, lr: float, decay: float = 0.0) -> Vector:
    """Kingma and Ba's algorithm 1, with L2 decay in the gradient."""
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t in range(1, steps + 1):
        g = gradients(w) + decay * w
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g**2
        w = w - lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return w


def sigmoid(a: Vector) -> Vector:
    return np.asarray(1.0 / (1.0 + np.exp(-a)))


def teach(theta: Vector, z: Vector, f: Vector, own: Vector) -> tuple[Vector, Callable[[Vector], Vector]]:
    """The teacher's logits of logits z (K, n, C), mean features f (n, d), tuned logits own; and its pull-back."""
    classes, width = own.shape[1], f.shape[1]
    cuts = np.cumsum([classes, 1, classes, classes, width])
    s, b, t, q, v, c = np.split(theta, cuts)
    raw = sigmoid(z @ s + b)
    a = raw / raw.sum(axis=0)
    mixed = np.einsum("kn,knc->nc", a, z)
    gate = sigmoid(f @ v + c)[:, None]

    def pull(by_teacher: Vector) -> Vector:
        by_ensemble = gate * by_teacher
        by_gate = (by_teacher * (t * mixed + q - own)).sum(axis=1) * (gate * (1 - gate))[:, 0]
        by_a = np.einsum("nc,knc->kn", by_ensemble * t, z)
        by_raw = (by_a - (a * by_a).sum(axis=0)) / raw.sum(axis=0) * raw * (1 - raw)
        parts = [np.einsum("kn,knc->c", by_raw, z), [by_raw.sum()], (by_ensemble * mixed).sum(axis=0)]
        parts += [by_ensemble.sum(axis=0), f.T @ by_gate, [by_gate.sum()]]
        return np.concatenate(parts)

    return gate * (t * mixed + q) + (1 - gate) * own, pull


def run_fedic(
    x0: ArrayLike, net: TwoLayer, data: Data, sizes: ArrayLike, cohorts: Cohorts, *, server: Server, **local: Any
) -> tuple[list[Vector], list[Vector]]:
    """FedIC (Shang et al. 2022): the models and the calibrations after each round."""
    clients, thetas = Clients(data, sizes, cohorts, **local), list[Vector]()
    inputs, labels, c = server.inputs, server.labels, net.classes

    def errors(logits: Vector, rows: Labels) -> Vector:
        return (np.exp(log_softmax(logits)) - one_hot(labels[rows], net.classes)) / len(rows)

    def by_labels(rows: Rows, y: Vector) -> Vector:
        at = next(rows)
        return net.backward(y, inputs[at], errors(net.logits(y, inputs[at]), at))

    def gradient(k: int, batch: Batch, y: Vector) -> Vector:
        p = np.exp(log_softmax(net.logits(y, batch.inputs)))
        return net.backward(y, batch.inputs, (p - one_hot(batch.labels, c)) / len(batch.labels))

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        first, second, hard, soft = server.rows(r)
        models = {k: clients.train(k, r, eta, x, partial(gradient, k)) for k in cohort}
        mean = clients.merge(x, models)
        tuned = adam(mean, partial(by_labels, first), server.steps, server.lr, server.decay)
        z = np.stack([net.logits(y, inputs) for y in models.values()])
        f, own = np.mean([net.features(y, inputs) for y in models.values()], axis=0), net.logits(tuned, inputs)
        start = np.concatenate([np.ones(c), [0.0], np.ones(c), np.zeros(c + f.shape[1] + 1)])

        def by_theta(theta: Vector) -> Vector:
            at = next(second)
            teacher, pull = teach(theta, z[:, at], f[at], own[at])
            return pull(errors(teacher, at))

        thetas.append(adam(thetas[-1] if thetas else start, by_theta, server.steps, server.lr))
        target = np.exp(log_softmax(teach(thetas[-1], z, f, own)[0] / server.temperature))

        def by_both(y: Vector) -> Vector:
            at = next(soft)
            p = np.exp(log_softmax(net.logits(y, inputs[at]) / server.temperature))
            towards = net.backward(y, inputs[at], (p - target[at]) / server.temperature / len(at))
            return server.soft * towards + (1 - server.soft) * by_labels(hard, y)

        return adam(mean, by_both, server.steps, server.lr, server.decay)

    return clients.fed.run(x0, one_round), thetas
