"""Methods whose clients keep a model of their own, in NumPy: Ditto and FedProto."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .zoo_losses import Vector, cross_entropy
from .zoo_shared import Cohorts
from .zoo_two_layer import Batch, Clients, Data, TwoLayer

Models = dict[int, Vector]  # of the clients that have trained


def run_ditto(
    x0: ArrayLike,
    net: TwoLayer,
    data: Data,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    lam: float = 0.1,
    first: str = "received",
    **local: Any,
) -> tuple[list[Vector], list[Models]]:
    """Ditto (Li et al. 2021): the models of all and the clients' own after each round. The mean is over samples.

    A client's own model starts as the model that it receives when it first takes part (`first="received"`), or
    as the initial one (`"initial"`, as released). Its steps are as many as those for the model of all.
    """
    if first not in ("received", "initial"):
        raise ValueError(f"first is {first!r}; allowed: received, initial")
    clients, own, kept = Clients(data, sizes, cohorts, **local), Models(), list[Models]()

    def plain(batch: Batch, y: Vector) -> Vector:
        return net.backward(y, batch.inputs, cross_entropy(net.logits(y, batch.inputs), batch.labels)[1])

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        def pulled(batch: Batch, v: Vector) -> Vector:
            return plain(batch, v) + lam * (v - x)  # of F_k + lam/2 ||v - x||^2

        start = x if first == "received" else np.asarray(x0, dtype=np.float64)
        own.update({k: clients.train(k, r, eta, own.get(k, start), pulled) for k in cohort})
        return clients.merge(x, {k: clients.train(k, r, eta, x, plain) for k in cohort})

    def watched(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        x = one_round(r, cohort, eta, x)
        kept.append(dict(own))
        return x

    models = clients.fed.run(x0, watched)
    return models, after_each(kept, cohorts)


def after_each(kept: list[Models], cohorts: Cohorts) -> list[Models]:
    """What there is after each round, given what there is after those with an answer; the first has one."""
    return [kept[i - 1] for i in np.cumsum([len(cohort) > 0 for cohort in cohorts])]


@dataclass
class Prototypes:
    """The mean of the features of each class, where anybody has had it."""

    net: TwoLayer
    means: dict[int, Vector] = field(default_factory=dict)

    def pull(self, features: Vector, labels: ArrayLike) -> Vector:
        """Gradient by the features of the batch's mean of mean_j (f_j - m_yj)^2; 0 of a class without a mean."""
        d = np.zeros_like(features)
        for i, c in enumerate(np.asarray(labels)):
            if int(c) in self.means:
                d[i] = 2 * (features[i] - self.means[int(c)]) / features.shape[1] / len(features)
        return d

    def renewed(self, models: Models, data: Data) -> "Prototypes":
        """The means over all samples that these clients have of a class; one that nobody has keeps its mean."""
        means = dict(self.means)
        for c in range(self.net.classes):
            found = [self.net.features(w, data[k][0][data[k][1] == c]) for k, w in models.items()]
            rows = np.concatenate(found)
            if len(rows):
                means[c] = rows.mean(axis=0)
        return Prototypes(self.net, means)


def run_fedproto(
    x0: ArrayLike,
    net: TwoLayer,
    data: Data,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    pull: float = 1.0,
    **local: Any,
) -> tuple[list[Models], list[dict[int, Vector]]]:
    """FedProto (Tan et al. 2022): the clients' models and the class means after each round.

    Class means weight clients by their samples, as in the paper. They are of the clients' trained models.
    """
    clients, own, sent = Clients(data, sizes, cohorts, **local), Models(), Prototypes(net)
    kept, means = list[Models](), list[Models]()

    def gradient(prototypes: Prototypes, batch: Batch, y: Vector) -> Vector:
        d_logits = cross_entropy(net.logits(y, batch.inputs), batch.labels)[1]
        d_features = pull * prototypes.pull(net.features(y, batch.inputs), batch.labels)
        return net.backward(y, batch.inputs, d_logits, d_features=d_features)

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        nonlocal sent
        trained = {k: clients.train(k, r, eta, own.get(k, x), partial(gradient, sent)) for k in cohort}
        own.update(trained)
        sent = sent.renewed(trained, data)
        kept.append(dict(own))
        means.append(sent.means)
        return x  # nobody sends a model

    clients.fed.run(x0, one_round)
    return after_each(kept, cohorts), after_each(means, cohorts)
