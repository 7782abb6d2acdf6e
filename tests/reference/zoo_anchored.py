"""MOON, FedLoGe and RUCR in NumPy: features of a two-layer network that a loss holds to fixed points."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .softmax_regression import loss_gradient
from .zoo_losses import Labels, Vector, cross_entropy, one_hot
from .zoo_shared import Cohorts
from .zoo_two_layer import Batch, Clients, Data, Step, TwoLayer


class Anchored(NamedTuple):
    """The models after each round, and the heads that are evaluated with them."""

    models: list[Vector]
    heads: list[Vector]


def units(rows: Vector) -> Vector:
    """Rows of length 1; a row of 0 stays."""
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)


def cosines(f: Vector, g: Vector) -> tuple[Vector, Vector]:
    """cos(f_i, g_i) of each row, and its gradient by f."""
    cosine = (units(f) * units(g)).sum(axis=1, keepdims=True)
    return cosine[:, 0], (units(g) - cosine * units(f)) / np.linalg.norm(f, axis=1, keepdims=True)


def contrast(f: Vector, received: Vector, last: Vector, tau: float) -> tuple[float, Vector]:
    """Mean of -log softmax(cos(f, received)/tau, cos(f, last)/tau)_1, and its gradient by f."""
    (near, d_near), (far, d_far) = cosines(f, received), cosines(f, last)
    gap = (far - near) / tau
    slope = 1 / (1 + np.exp(-gap)) / tau / len(f)
    return float(np.logaddexp(0.0, gap).mean()), slope[:, None] * (d_far - d_near)


def run_moon(
    x0: ArrayLike,
    net: TwoLayer,
    data: Data,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    mu: float = 1.0,
    tau: float = 0.5,
    **local: Any,
) -> Anchored:
    """MOON (Li et al. 2021), with the features that enter the head and no projection. The mean is over samples."""
    clients, last = Clients(data, sizes, cohorts, **local), dict[int, Vector]()

    def step_of(k: int, x: Vector) -> Step:
        def gradient(batch: Batch, y: Vector) -> Vector:
            d_logits = cross_entropy(net.logits(y, batch.inputs), batch.labels)[1]
            if k not in last:
                return net.backward(y, batch.inputs, d_logits)
            f, received, before = (net.features(model, batch.inputs) for model in (y, x, last[k]))
            return net.backward(y, batch.inputs, d_logits, d_features=mu * contrast(f, received, before, tau)[1])

        return gradient

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        trained = {k: clients.train(k, r, eta, x, step_of(k, x)) for k in cohort}
        last.update(trained)
        return clients.merge(x, trained)

    models = clients.fed.run(x0, one_round)
    return Anchored(models, [net.head(x) for x in models])


def run_fedloge(
    x0: ArrayLike,
    net: TwoLayer,
    data: Data,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    frame: Vector,
    head_norm: float | None = 1.7,
    **local: Any,
) -> Anchored:
    """FedLoGe (Xiao et al. 2024), its global part: the frame (C, d) trains the features, the head follows them."""
    clients = Clients(data, sizes, cohorts, **local)

    def gradient(batch: Batch, y: Vector) -> Vector:
        f, weight = net.features(y, batch.inputs), net.head_parts(net.head(y))[0]
        d_fixed = cross_entropy(f @ frame.T, batch.labels)[1]
        d_own = cross_entropy(net.logits(y, batch.inputs), batch.labels)[1]
        return net.backward(y, batch.inputs, d_own, d_features=d_fixed @ frame - d_own @ weight)

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        return clients.merge(x, {k: clients.train(k, r, eta, x, gradient) for k in cohort})

    def realigned(x: Vector) -> Vector:
        weight, bias = net.head_parts(net.head(x))
        return np.concatenate([(weight if head_norm is None else head_norm * units(weight)).ravel(), bias])

    models = clients.fed.run(x0, one_round)
    return Anchored(models, [realigned(x) for x in models])


def unified(
    f: Vector, y: Labels, means: Vector, present: Vector, log_share: Vector, temperature: float
) -> tuple[float, Vector]:
    """CE of u_c = cos(f, m_c)/T [client has c] + [c = y] log pi_y, and its gradient by f."""
    columns = [cosines(f, np.tile(mean, (len(f), 1))) for mean in means]
    similarity = np.stack([cosine for cosine, _ in columns], axis=1) * present / temperature
    value, d = cross_entropy(similarity + one_hot(y, len(means)) * log_share, y)
    slopes = np.stack([slope for _, slope in columns], axis=1)
    return value, ((d * present / temperature)[:, :, None] * slopes).sum(axis=1)


Mixing = Callable[[int, int], tuple[Labels, Vector, Sequence[Labels]]]
"""Of (client, round): each mixture's sample (C, m), its share of the direction, and the mini-batches over all."""


@dataclass(frozen=True)
class Retraining:
    """The heads of the rounds from `start` on."""

    start: int
    mixing: Mixing
    lr: float

    def head(self, net: TwoLayer, y: Vector, f: Vector, directions: Vector, k: int, r: int) -> Vector:
        """The head of y after steps on lambda q_c + (1 - lambda) f(i)/|f(i)|, flat."""
        rows, share, batches = self.mixing(k, r)
        mixed = share[..., None] * directions[:, None] + (1 - share[..., None]) * units(f)[rows]
        inputs, labels = mixed.reshape(-1, net.hidden), np.repeat(np.arange(net.classes), rows.shape[1])
        head = net.head(y).copy()
        for batch in batches:
            head = head - self.lr * loss_gradient(head, inputs[batch], labels[batch], net.classes)[1]
        return head


def run_rucr(
    x0: ArrayLike,
    net: TwoLayer,
    data: Data,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    retraining: Retraining,
    weight: float = 0.15,
    temperature: float = 0.9,
    **local: Any,
) -> Anchored:
    """RUCR: class means over the round's clients unify the features; means of re-trained heads are evaluated."""
    clients, retrained = Clients(data, sizes, cohorts, **local), dict[int, Vector]()
    counts = np.array([np.bincount(labels, minlength=net.classes) for _, labels in data], dtype=np.float64)
    shares = np.maximum(counts.sum(axis=0) / counts.sum(), 0.5 / counts.sum())

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        features = {k: net.features(x, data[k][0]) for k in cohort}
        sums = {k: one_hot(data[k][1], net.classes).T @ features[k] for k in cohort}
        of_class = np.maximum(counts[cohort].sum(axis=0), 1)[:, None]
        means = np.sum(list(sums.values()), axis=0) / of_class
        directions = np.sum([counts[k][:, None] * units(sums[k]) for k in cohort], axis=0) / of_class

        def step_of(k: int) -> Step:
            def gradient(batch: Batch, y: Vector) -> Vector:
                d_logits = cross_entropy(net.logits(y, batch.inputs), batch.labels)[1]
                f = net.features(y, batch.inputs)
                pull = unified(f, batch.labels, means, counts[k] > 0, np.log(shares), temperature)[1]
                return net.backward(y, batch.inputs, d_logits, d_features=weight * pull)

            return gradient

        trained = {k: clients.train(k, r, eta, x, step_of(k)) for k in cohort}
        if r >= retraining.start:
            heads = {k: retraining.head(net, y, features[k], directions, k, r) for k, y in trained.items()}
            retrained[r] = clients.fed.mean(heads, "samples")
        return clients.merge(x, trained)

    models = clients.fed.run(x0, one_round)
    known = [max((at for at in retrained if at <= r), default=None) for r in range(len(models))]
    return Anchored(
        models, [net.head(x) if at is None else retrained[at] for x, at in zip(models, known, strict=True)]
    )
