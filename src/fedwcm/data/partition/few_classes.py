"""A few classes per client, the strongest form of label skew: in shards, or in Dirichlet shares of each class."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedwcm.core.checks import require_count
from fedwcm.data.partition import protocol


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
        require_count("clients", self.clients)
        require_count("classes_per_client", self.classes_per_client)

    def __call__(self, labels: NDArray[np.int64], rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """Split the samples over the clients."""
        protocol.require_samples(labels, self.clients)
        left = np.bincount(labels)
        limit = max(self.classes_per_client, math.ceil((np.count_nonzero(left) - 1) / self.clients) + 1)
        sizes = np.sort(protocol.equal_sizes(labels.size, self.clients, rng))[::-1]
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
        return protocol.deal_counts(rng.permutation(counts), labels, rng)


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


@dataclass(frozen=True, kw_only=True)
class ExtendedDirichlet(protocol.DirichletPartition):
    """Each client is given `classes_per_client` classes; each class is shared by Dirichlet(beta) over its clients.

    The extended Dirichlet strategy of Li and Lyu (Convergence analysis of sequential federated learning on
    heterogeneous data, NeurIPS 2023), which sets the number of classes and the sizes apart. Classes are given to
    equally many clients (within one), drawn at random; a class with fewer samples than clients may be given to
    fewer. Sizes are unequal. Every sample is used once, and each client has at least one sample of a class of
    its own. Clients that are too few for all classes get more of them: ceil(classes / clients).
    """

    classes_per_client: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("classes_per_client", self.classes_per_client)

    def __call__(self, labels: NDArray[np.int64], rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """Split the samples over the clients."""
        protocol.require_samples(labels, self.clients)
        stock = np.bincount(labels)
        present = np.flatnonzero(stock)
        width = min(max(self.classes_per_client, math.ceil(present.size / self.clients)), present.size)
        has_class, counts = _give_classes(stock[present], self.clients, width, rng)
        shares = protocol.renormalise(
            protocol.log_dirichlet(self.beta, (present.size, self.clients), rng), has_class.T
        )
        upto = np.cumsum(shares, axis=1)
        rest = (stock[present] - counts.sum(axis=0))[:, None]
        counts += np.diff((upto / upto[:, -1:] * rest).astype(np.int64), axis=1, prepend=0).T
        table = np.zeros((self.clients, stock.size), dtype=np.int64)
        table[:, present] = rng.permutation(counts)
        return protocol.deal_counts(table, labels, rng)


def _give_classes(
    stock: NDArray[np.int64], clients: int, width: int, rng: np.random.Generator
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return which classes each client is given, and one sample of the first of them: both (clients, classes).

    Each client takes those that the fewest have so far, the first from a class that has a sample left for it.
    """
    has_class = np.zeros((clients, stock.size), dtype=bool)
    first = np.zeros((clients, stock.size), dtype=np.int64)
    holders, left = np.zeros(stock.size, dtype=np.int64), stock.copy()
    for client in range(clients):
        order = np.lexsort((rng.random(stock.size), holders))
        home = order[np.argmax(left[order] > 0)]
        chosen = [home, *order[order != home][: width - 1]]
        has_class[client, chosen], first[client, home] = True, 1
        holders[chosen] += 1
        left[home] -= 1
    return has_class, first
