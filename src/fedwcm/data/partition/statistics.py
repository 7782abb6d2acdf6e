"""What a partition looks like: how much each client holds and how far its class mix is from the whole."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedwcm.core.checks import require


@dataclass(frozen=True, kw_only=True)
class PartitionStatistics:
    """A summary of the clients' class counts.

    The distance of a client is the total variation distance between its class distribution and the
    global one: 0 is the same mix and 1 is nothing in common. Clients without samples have none.
    """

    clients: int
    samples: int
    size_min: int
    size_median: float
    size_max: int
    classes_per_client_min: int
    classes_per_client_median: float
    classes_per_client_max: int
    distance_mean: float
    distance_max: float
    share_of_largest_tenth: float
    """Share of all samples that the largest 10 % of the clients hold (rounded up to whole clients)."""
    imbalance: float
    """The smallest class total divided by the largest."""


def counts_of(parts: Sequence[NDArray[np.int64]], labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """Return the number of samples of each class that each client holds, as a (clients, classes) table."""
    owner = np.repeat(np.arange(len(parts)), [part.size for part in parts])
    client_labels = np.asarray(labels)[np.concatenate(parts)] if parts else np.zeros(0, dtype=np.int64)
    largest = int(client_labels.max(initial=-1))
    require(largest < classes, "classes", classes, f"above the largest label, {largest}")
    table = np.bincount(owner * classes + client_labels, minlength=len(parts) * classes)
    return table.reshape(len(parts), classes).astype(np.int64, copy=False)


def describe(counts: NDArray[np.int64]) -> PartitionStatistics:
    """Summarise a (clients, classes) table of counts."""
    counts = np.asarray(counts)
    if counts.ndim != 2 or counts.sum() == 0:
        raise ValueError(f"counts must be a (clients, classes) table with samples, got shape {counts.shape}")
    sizes, totals = counts.sum(axis=1), counts.sum(axis=0)
    classes = np.count_nonzero(counts, axis=1)
    distance = _distances(counts[sizes > 0])
    largest = np.sort(sizes)[::-1][: math.ceil(sizes.size / 10)]
    return PartitionStatistics(
        clients=sizes.size,
        samples=int(sizes.sum()),
        size_min=int(sizes.min()),
        size_median=float(np.median(sizes)),
        size_max=int(sizes.max()),
        classes_per_client_min=int(classes.min()),
        classes_per_client_median=float(np.median(classes)),
        classes_per_client_max=int(classes.max()),
        distance_mean=float(distance.mean()),
        distance_max=float(distance.max()),
        share_of_largest_tenth=float(largest.sum() / sizes.sum()),
        imbalance=float(totals.min() / totals.max()),
    )


def _distances(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the total variation distance of each row's distribution from that of all rows together."""
    mixes = counts / counts.sum(axis=1, keepdims=True)
    whole = counts.sum(axis=0) / counts.sum()
    return np.asarray(np.abs(mixes - whole).sum(axis=1) / 2, dtype=np.float64)
