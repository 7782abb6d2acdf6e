"""BalanceFL, Fed-GraB, CReFF and CLIP2FL on a network of two layers.

`data` holds each client's inputs and labels, `sizes` its n_k for the mean, and `**local` what `Clients` takes:
`batches`, `local_lr`, `lr_decay`, `server_lr`, `average` and `augment`. Every random draw is an argument.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .zoo_balancefl import BalanceFL
from .zoo_features import FeatureServer, class_gradient, contrast, mean_gradients
from .zoo_grab import GradientBalancer, PriorAnalyser, groups
from .zoo_losses import Labels, Vector, clip2fl_client, cross_entropy
from .zoo_shared import Cohorts
from .zoo_two_layer import Batch, Clients, Data, TwoLayer

Gate = Callable[[int, int, int, list[int]], Iterable[int]]  # of (client, round, step, tail): who keeps weight 1
ClassInputs = Callable[[int, int, int], Sequence[Vector]]  # of (client, round, class): batches of inputs
LogitGradient = Callable[[int, Batch, Vector], Vector]  # of (client, batch, logits)


def run_balancefl(
    x0: ArrayLike,
    net: TwoLayer,
    data: Data,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    method: BalanceFL,
    **local: Any,
) -> list[Vector]:
    """BalanceFL (Shuai et al. 2022). The mean is over samples."""
    clients = Clients(data, sizes, cohorts, **local)

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        models = {k: clients.train(k, r, eta, x, method.step(net, k, r, x, data[k])) for k in cohort}
        return clients.merge(x, models)

    return clients.fed.run(x0, one_round)


@dataclass
class Tail:
    """The classes whose controllers are open.

    `rule="analysed"` takes the tail of the analyser, `"all"` every class, as the released script. Open in the
    specification, the first being the default: the analyser sees the global model after each round, so that the
    first round has no estimate and opens all controllers (`first="all"`), opens none (`"none"`), or has the
    initial model analysed as well (`"initial"`); `crossing` as in `groups`.
    """

    rule: str = "analysed"
    first: str = "all"
    cuts: tuple[float, float] = (0.75, 0.95)
    crossing: str = "earlier"

    def classes(self, analyser: PriorAnalyser) -> list[int]:
        everything = list(range(len(analyser.total)))
        if self.rule == "all":
            return everything
        if analyser.rounds == 0:
            return everything if self.first == "all" else []
        return sorted(groups(analyser.share, self.cuts, self.crossing)[2])


def run_fedgrab(
    x0: ArrayLike,
    net: TwoLayer,
    data: Data,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    tail: Tail | None = None,
    gate: Gate | None = None,
    train_head: bool = True,
    balancer: dict[str, Any] | None = None,
    **local: Any,
) -> list[Vector]:
    """Fed-GraB (Xiao et al. 2023), with the head in the optimiser and no gate. The mean is over samples.

    `balancer` is what `GradientBalancer` takes.
    """
    clients, analyser, tail = Clients(data, sizes, cohorts, **local), PriorAnalyser(net.classes), tail or Tail()
    states = {k: GradientBalancer(net.classes, **(balancer or {})) for k in range(len(data))}

    def gradient(k: int, r: int, opened: list[int], batch: Batch, y: Vector) -> Vector:
        gated = () if gate is None else gate(k, r, batch.step, opened)
        mask = np.isin(np.arange(net.classes), opened)
        d_logits = states[k].gradient(net.logits(y, batch.inputs), batch.labels, mask, gated)
        g = net.backward(y, batch.inputs, d_logits)
        return g if train_head else net.with_head(g, np.zeros_like(net.head(g)))

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        if tail.first == "initial" and analyser.rounds == 0:
            analyser.see(net.head_parts(net.head(x))[0])
        opened = tail.classes(analyser)
        x = clients.merge(x, {k: clients.train(k, r, eta, x, partial(gradient, k, r, opened)) for k in cohort})
        analyser.see(net.head_parts(net.head(x))[0])
        return x

    return clients.fed.run(x0, one_round)


def plain_gradient(k: int, batch: Batch, z: Vector) -> Vector:
    """Of the cross-entropy, by the logits."""
    del k
    return cross_entropy(z, batch.labels)[1]


def class_gradients(
    net: TwoLayer,
    x: Vector,
    head: Vector,
    data: tuple[Vector, Labels],
    drawn: Callable[[int], Sequence[Vector]] | None,
) -> dict[int, tuple[int, Vector]]:
    """A client's upload: n_kc and the gradient by the re-trained head, over x's backbone, of each local class."""
    found = {}
    for c, n in zip(*np.unique(data[1], return_counts=True), strict=True):
        batches = [data[0][data[1] == c]] if drawn is None else drawn(int(c))
        features = [net.features(x, inputs) for inputs in batches]
        found[int(c)] = (int(n), class_gradient(head, features, int(c), net.classes))
    return found


def run_creff(
    x0: ArrayLike,
    net: TwoLayer,
    data: Data,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    server: FeatureServer,
    head0: ArrayLike | None = None,
    class_inputs: ClassInputs | None = None,
    class_average: str = "clients",
    by_logits: LogitGradient = plain_gradient,
    extra: Callable[[Vector], Vector] | None = None,
    **local: Any,
) -> tuple[list[Vector], list[Vector]]:
    """CReFF (Shang et al. 2022): the models and the re-trained heads after each round. The mean is over samples.

    `class_inputs` lists drawn, augmented batches of a class; without it, its samples are one batch. Open in the
    specification: the first gradients are of the global head, or of `head0`; a class's mean is plain, or by n_kc.
    """
    clients, features = Clients(data, sizes, cohorts, **local), np.array(server.features0, dtype=np.float64)
    heads = [np.array(net.head(np.asarray(x0)) if head0 is None else head0, dtype=np.float64)]

    def upload(k: int, r: int, x: Vector) -> dict[int, tuple[int, Vector]]:
        drawn = None if class_inputs is None else partial(class_inputs, k, r)
        return class_gradients(net, x, heads[-1], data[k], drawn)

    def gradient(k: int, batch: Batch, y: Vector) -> Vector:
        return net.backward(y, batch.inputs, by_logits(k, batch, net.logits(y, batch.inputs)))

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        nonlocal features
        real = mean_gradients([upload(k, r, x) for k in cohort], class_average)
        features = server.match(features, heads[-1], real, extra)
        heads.append(server.retrained(r, features, heads[-1]))
        return clients.merge(x, {k: clients.train(k, r, eta, x, partial(gradient, k)) for k in cohort})

    models, played = clients.fed.run(x0, one_round), np.cumsum([len(cohort) > 0 for cohort in cohorts])
    return models, [heads[i] for i in played]  # a round without an answer keeps its head


def run_clip2fl(
    x0: ArrayLike,
    net: TwoLayer,
    data: Data,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    teacher: Sequence[Vector],
    text: ArrayLike,
    alpha: float = 1.0,
    temperature: float = 3.0,
    contrast_weight: float = 0.001,
    contrast_options: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[list[Vector], list[Vector]]:
    """CLIP2FL (Shi et al. 2024): CReFF with a teacher at the clients and its text embeddings at the server.

    `teacher` holds each client's zero-shot logits (n_k, C), of samples as they are; `text` the classes'
    embeddings (C, d), as wide as the features. `contrast_options` is what `contrast` takes: temperature 0.1,
    `unit`, `exclude_self`.
    """

    def by_logits(k: int, batch: Batch, z: Vector) -> Vector:
        return clip2fl_client(z, batch.labels, teacher[k][batch.at], alpha, temperature)[1]

    def extra(features: Vector) -> Vector:
        return contrast_weight * contrast(features, text, **(contrast_options or {}))[1]

    return run_creff(x0, net, data, sizes, cohorts, by_logits=by_logits, extra=extra, **options)
