"""ImbSAM in NumPy: local steps that are sharpness-aware for samples of the rare classes alone."""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .zoo_losses import Labels, Vector, cross_entropy
from .zoo_shared import SAM_EPS, Cohorts, ascent
from .zoo_two_layer import Batch, Clients, Data, TwoLayer


def rare_classes(totals: ArrayLike, share: float) -> set[int]:
    """The classes with the fewest samples, one after the other, while together they hold at most this share."""
    n = [int(count) for count in np.asarray(totals)]
    rare, held = set[int](), 0
    for c in sorted(range(len(n)), key=lambda c: n[c]):
        held += n[c]
        if held / sum(n) > share + 1e-9:
            break
        rare.add(c)
    return rare


def run_imbsam(
    x0: ArrayLike,
    net: TwoLayer,
    data: Data,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    rho: float = 0.1,
    tail_share: float = 0.2,
    eps: float = SAM_EPS,
    **local: Any,
) -> list[Vector]:
    """ImbSAM (Zhou et al. 2023): y <- y - eta (g_head(y) + g_tail(y + e)), e along g_tail(y).

    Both parts are sums over their samples, divided by the size of the whole batch. The mean is over samples.
    """
    clients = Clients(data, sizes, cohorts, **local)
    everybody = np.concatenate([labels for _, labels in data])
    tail = list(rare_classes(np.bincount(everybody, minlength=net.classes), tail_share))

    def part(batch: Batch, members: Labels, y: Vector) -> Vector:
        d_logits = cross_entropy(net.logits(y, batch.inputs), batch.labels)[1]  # each row over the batch's size
        return net.backward(y, batch.inputs[members], d_logits[members])

    def gradient(batch: Batch, y: Vector) -> Vector:
        rare = np.isin(batch.labels, tail)
        head, last = np.flatnonzero(~rare), np.flatnonzero(rare)
        return part(batch, head, y) + part(batch, last, y + ascent(part(batch, last, y), rho, eps))

    def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
        train = partial(clients.train, r=r, eta=eta, x=x, gradient=gradient)
        return clients.merge(x, {k: train(k) for k in cohort})

    return clients.fed.run(x0, one_round)
