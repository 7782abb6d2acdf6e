"""The split of FedDF's code, which CReFF and its successors use: Dirichlet in groups, then cut evenly."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.partition.dealing import deal_in_order, equal_sizes, log_dirichlet, renormalise
from fedwcm.data.partition.protocol import check_count, check_labels, check_positive

_GROUP = 10
_ATTEMPTS = 1000
# Bounds the time when there are thousands of groups.
_ATTEMPTS_OF_ALL_GROUPS = 500_000


@dataclass(frozen=True, kw_only=True)
class CReFF:
    """Dirichlet(beta) shares within groups of clients, then one long row cut into equal parts.

    The shuffled samples are shared out among groups of ten clients (the last may be smaller). In a group
    each class is divided by Dirichlet(beta) shares over the members that are still below the group's
    average size. A group is drawn again until each member has half the average. At small beta that may
    never come, so there are at most 1000 attempts (fewer above 500 groups), and then the attempt whose
    smallest member is the largest stands. All members' samples, class after class, are then laid end to
    end and cut into equal contiguous parts.

    Client sizes differ by at most one and every sample is used once.
    """

    clients: int
    beta: float

    def __post_init__(self) -> None:
        check_count("clients", self.clients)
        check_positive("beta", self.beta)

    def __call__(self, labels: NDArray[np.int64], rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """Split the samples over the clients."""
        labels = check_labels(labels, self.clients)
        classes = int(labels.max()) + 1
        edges = np.append(np.arange(0, self.clients, _GROUP), self.clients)
        group = np.repeat(np.arange(edges.size - 1), np.diff(edges * labels.size // self.clients))
        shuffled = rng.permutation(labels.size)
        cell = group * classes + labels[shuffled]
        stock = np.bincount(cell, minlength=(edges.size - 1) * classes).reshape(-1, classes)

        counts = _divide_groups(stock, np.diff(edges), self.beta, rng)
        by_cell = np.argsort(cell, kind="stable")
        member = np.repeat(np.resize(np.arange(_GROUP), counts.size), counts.ravel())
        row = np.lexsort((cell[by_cell], member, group[by_cell]))
        sizes = equal_sizes(labels.size, self.clients, rng)
        return deal_in_order(shuffled[by_cell][row], np.arange(self.clients), sizes, self.clients)


def _divide_groups(
    stock: NDArray[np.int64], members: NDArray[np.int64], beta: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw counts (groups, classes, members): the first attempt that is even enough, or else the best."""
    is_member = np.arange(_GROUP) < members[:, None]
    half_average = stock.sum(axis=1) // (2 * members)
    best = np.zeros((*stock.shape, _GROUP), dtype=np.int64)
    smallest = np.full(members.size, -1)
    for _ in range(min(_ATTEMPTS, 1 + _ATTEMPTS_OF_ALL_GROUPS // members.size)):
        uneven = np.flatnonzero(smallest < half_average)
        if uneven.size == 0:
            break
        attempt = _try_division(stock[uneven], is_member[uneven], beta, rng)
        reached = np.where(is_member[uneven], attempt.sum(axis=1), np.iinfo(np.int64).max).min(axis=1)
        better = reached > smallest[uneven]
        best[uneven[better]] = attempt[better]
        smallest[uneven[better]] = reached[better]
    return best


def _try_division(
    stock: NDArray[np.int64], is_member: NDArray[np.bool_], beta: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw one division of every group's classes, in label order, over the members below the average."""
    counts = np.zeros((*stock.shape, _GROUP), dtype=np.int64)
    sizes = np.zeros(is_member.shape, dtype=np.int64)
    average = stock.sum(axis=1) / is_member.sum(axis=1)
    for c in range(stock.shape[1]):
        below = is_member & (sizes < average[:, None])
        upto = np.cumsum(renormalise(log_dirichlet(beta, (stock.shape[0], _GROUP), rng), below), axis=1)
        cuts = (upto / upto[:, -1:] * stock[:, c, None]).astype(np.int64)
        counts[:, c] = np.diff(cuts, axis=1, prepend=0)
        sizes += counts[:, c]
    return counts
