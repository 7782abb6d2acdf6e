"""Hold out a part of the samples: of every class, or of whole clients."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.dataset import listed

Indices = NDArray[np.int64]


def stratified_split(
    labels: NDArray[Any], fraction: float, rng: np.random.Generator, groups: NDArray[Any] | None = None
) -> tuple[Indices, Indices]:
    """Split sample indices into `(keep, held_out)`, both in ascending order.

    Of a class with n samples, `floor(n * fraction + 0.5)` are held out (the nearest whole number, halves
    upwards), drawn at random, but never all n: every class keeps at least one sample in `keep`.
    Labels may be of any type that NumPy can sort.

    With `groups`, one for each sample, all samples of a group are in one of the two. Groups are drawn one after
    the other, and one is held out if that brings the classes closer to these counts and uses up none of them.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"fraction is {fraction}: it must be at least 0 and below 1")
    if groups is not None:
        return _group_split(labels, fraction, rng, groups)
    held_out = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = min(int(len(members) * fraction + 0.5), len(members) - 1)
        held_out[rng.permutation(members)[:count]] = True
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _group_split(
    labels: NDArray[Any], fraction: float, rng: np.random.Generator, groups: NDArray[Any]
) -> tuple[Indices, Indices]:
    _, classes = np.unique(labels, return_inverse=True)
    names, members = np.unique(groups, return_inverse=True)
    totals = np.bincount(classes)
    wanted = np.minimum(np.floor(totals * fraction + 0.5), totals - 1)
    counts = np.bincount(members * len(totals) + classes, minlength=len(names) * len(totals))
    counts = counts.reshape(len(names), len(totals))
    chosen, held = np.zeros(len(names), dtype=bool), np.zeros(len(totals), dtype=np.int64)
    for group in rng.permutation(len(names)):
        after = held + counts[group]
        gain = (((held - wanted) / totals) ** 2).sum() - (((after - wanted) / totals) ** 2).sum()
        if gain > 0 and (after < totals).all():
            chosen[group], held = True, after
    held_out = chosen[members]
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def client_split(
    clients: NDArray[Any], chosen: float | Sequence[object], rng: np.random.Generator
) -> tuple[Indices, Indices]:
    """Split sample indices into `(keep, held_out)`, both in ascending order, all of a client in one of them.

    Args:
        clients: the client of each sample.
        chosen: the names of those to hold out, or the share of the clients to draw: the nearest whole number of
            them, at least one and never all.
        rng: draws them.
    """
    unique, ids = np.unique(clients, return_inverse=True)
    names = [str(name) for name in unique]
    if isinstance(chosen, float):
        count = min(max(1, int(len(names) * chosen + 0.5)), len(names) - 1)
        out = rng.permutation(len(names))[:count]
    else:
        strange = [str(name) for name in chosen if str(name) not in names]
        if strange:
            raise ValueError(f"test_clients: no client is called {listed(strange)}; they are {listed(names)}")
        out = np.array([names.index(str(name)) for name in chosen], dtype=np.int64)
    if len(set(out.tolist())) in (0, len(names)):
        text = "leaves no client to train, or none to test on"
        raise ValueError(f"test_clients = {chosen!r} {text}: there are {len(names)} clients")
    held_out = np.isin(ids, out)
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)
