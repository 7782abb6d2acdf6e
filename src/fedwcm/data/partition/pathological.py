"""A few classes per client: the strongest form of label skew."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.partition.dealing import deal_counts, equal_sizes
from fedwcm.data.partition.protocol import check_count, check_labels


@dataclass(frozen=True, kw_only=True)
class Pathological:
    """Each client holds at most `classes_per_client` classes.

    A client's samples are that many shards of equal size (to within one), each from a class drawn in
    proportion to what is left of it. Two shards may be of the same class. Client sizes differ by at most
    one and every sample is used once.

    Guarantee, for any class totals: with C classes, no client holds more than
    max(classes_per_client, ceil((C - 1) / clients) + 1) of them. That is `classes_per_client` itself
    when it is at least 2 and clients * (classes_per_client - 1) >= C - 1. No better bound holds for all
    totals. With classes_per_client=1 and at least C - 1 clients, at most C - 1 of them hold two.

    Why: b clients of equal size can share m classes with at most L a client whenever m <= b(L - 1) + 1.
    Clients are served one by one, the larger first. One takes its shards only if they keep that true for
    the rest; otherwise it takes, of the classes sorted by what is left, the first L neighbours that can
    fill it, smallest first, and so finishes as many classes as the condition asks for.
    """

    clients: int
    classes_per_client: int = 2

    def __post_init__(self) -> None:
        check_count("clients", self.clients)
        check_count("classes_per_client", self.classes_per_client)

    def __call__(self, labels: NDArray[np.int64], rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """Split the samples over the clients."""
        labels = check_labels(labels, self.clients)
        left = np.bincount(labels)
        limit = max(self.classes_per_client, math.ceil((np.count_nonzero(left) - 1) / self.clients) + 1)
        sizes = np.sort(equal_sizes(labels.size, self.clients, rng))[::-1]
        counts = np.zeros((self.clients, left.size), dtype=np.int64)
        luck = rng.random((self.clients, self.classes_per_client))
        for turn, size in enumerate(sizes.tolist()):
            taken = _take_shards(left, size, luck[turn])
            rest = left - taken
            solvable = (self.clients - turn - 1) * (limit - 1) + 1
            if rest.min() < 0 or np.count_nonzero(rest) > solvable:
                taken = _take_neighbours(left, size, limit)
                rest = left - taken
            counts[turn], left = taken, rest
        return deal_counts(rng.permutation(counts), labels, rng)


def _take_shards(left: NDArray[np.int64], size: int, luck: NDArray[np.float64]) -> NDArray[np.int64]:
    """Take one shard of each class that the uniform numbers in `luck` pick, in proportion to what is left."""
    upto = np.cumsum(left)
    picked = np.searchsorted(upto, luck * upto[-1], side="right")
    shard, longer = divmod(size, luck.size)
    taken = shard * np.bincount(picked, minlength=left.size)
    return taken + np.bincount(picked[:longer], minlength=left.size)


def _take_neighbours(left: NDArray[np.int64], size: int, limit: int) -> NDArray[np.int64]:
    """Fill the client from the first `limit` neighbours, by what is left, that suffice."""
    order = np.argsort(left, kind="stable")
    order = order[np.count_nonzero(left == 0) :]
    width = min(limit, order.size)
    upto = np.append(0, np.cumsum(left[order]))
    first = int(np.argmax(upto[width:] - upto[:-width] >= size))
    window = order[first : first + width]
    before = upto[first : first + width] - upto[first]
    taken = np.zeros_like(left)
    taken[window] = np.clip(size - before, 0, left[window])
    return taken
