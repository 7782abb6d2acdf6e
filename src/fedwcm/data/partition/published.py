"""Splits of other papers' code: FedDF's, which CReFF and its successors use; BalanceFL's; Fed-GraB's."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedwcm.core.checks import require_count
from fedwcm.data.partition import protocol

_GROUP = 10
_ATTEMPTS = 1000
# Bounds the time when there are thousands of groups.
_ATTEMPTS_OF_ALL_GROUPS = 500_000


@dataclass(frozen=True, kw_only=True)
class CReFF(protocol.DirichletPartition):
    """Dirichlet(beta) shares within groups of clients, then one long row cut into equal parts.

    The shuffled samples are shared out among groups of ten clients (the last may be smaller). In a group
    each class is divided by Dirichlet(beta) shares over the members that are still below the group's
    average size. A group is drawn again until each member has half the average. At small beta that may
    never come, so there are at most 1000 attempts (fewer above 500 groups), and then the attempt whose
    smallest member is the largest stands. All members' samples, class after class, are then laid end to
    end and cut into equal contiguous parts.

    Client sizes differ by at most one and every sample is used once.
    """

    def __call__(self, labels: NDArray[np.int64], rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """Split the samples over the clients."""
        protocol.require_samples(labels, self.clients)
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
        sizes = protocol.equal_sizes(labels.size, self.clients, rng)
        return protocol.deal_in_order(shuffled[by_cell][row], np.arange(self.clients), sizes, self.clients)


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
        upto = np.cumsum(
            protocol.renormalise(protocol.log_dirichlet(beta, (stock.shape[0], _GROUP), rng), below), axis=1
        )
        cuts = (upto / upto[:, -1:] * stock[:, c, None]).astype(np.int64)
        counts[:, c] = np.diff(cuts, axis=1, prepend=0)
        sizes += counts[:, c]
    return counts


@dataclass(frozen=True, kw_only=True)
class BalanceFL:
    """Samples sorted from the rarest class to the commonest and dealt in blocks, round after round.

    A block is tau_ratio times the size of the rarest class, rounded down, and may run over into the next
    class. In each round every client with room takes one block, or as much as it has room for, and the
    clients' order is shuffled anew. Larger blocks mean fewer classes per client. There is no Dirichlet
    prior here. Client sizes differ by at most one and every sample is used once.
    """

    clients: int
    tau_ratio: float = 2

    def __post_init__(self) -> None:
        require_count("clients", self.clients)
        protocol.check_positive("tau_ratio", self.tau_ratio)

    def __call__(self, labels: NDArray[np.int64], rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """Split the samples over the clients."""
        protocol.require_samples(labels, self.clients)
        counts = np.bincount(labels)
        sizes = protocol.equal_sizes(labels.size, self.clients, rng)
        smallest_class = counts[counts > 0].min()
        block = int(np.clip(self.tau_ratio * smallest_class, 1, labels.size))

        rarity = np.empty(counts.size, dtype=np.int64)
        rarity[np.argsort(counts, kind="stable")] = np.arange(counts.size)
        rounds = math.ceil(sizes.max() / block)
        receivers = rng.permuted(np.tile(np.arange(self.clients), (rounds, 1)), axis=1)
        amounts = np.clip(sizes[receivers] - block * np.arange(rounds)[:, None], 0, block)
        order = protocol.shuffle_by_class(rarity[labels], rng)
        return protocol.deal_in_order(order, receivers.ravel(), amounts.ravel(), self.clients)


@dataclass(frozen=True, kw_only=True)
class FedGraB(protocol.DirichletPartition):
    """Very unequal clients: each sample goes to one by its class's shares q ~ Dirichlet(beta) over the clients.

    Sizes come out very unequal and some clients empty. Samples then move, one at a time and at random,
    from whichever client is the largest to the clients below `min_samples`, until none is below it.
    """

    min_samples: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("min_samples", self.min_samples)

    def __call__(self, labels: NDArray[np.int64], rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """Split the samples over the clients."""
        protocol.require_samples(labels, self.clients)
        needed = self.clients * self.min_samples
        if needed > labels.size:
            raise ValueError(
                f"min_samples = {self.min_samples} is not allowed: clients = {self.clients} would need "
                f"{needed} samples and there are {labels.size}"
            )
        owner = np.empty(labels.size, dtype=np.int64)
        for c, count in enumerate(np.bincount(labels)):
            shares = rng.dirichlet(np.full(self.clients, self.beta))
            owner[labels == c] = rng.choice(self.clients, size=count, p=shares)
        return protocol.group_by_owner(_fill_up(owner, self.clients, self.min_samples, rng), self.clients)


def _fill_up(
    owner: NDArray[np.int64], clients: int, min_samples: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the owners after samples moved from the largest clients to those below `min_samples`."""
    sizes = np.bincount(owner, minlength=clients)
    missing = np.maximum(min_samples - sizes, 0)
    surplus = _take_from_largest(sizes, int(missing.sum()), rng)
    order = rng.permutation(owner.size)
    moved = order[protocol.rank_within(owner[order]) < surplus[owner[order]]]
    filled = owner.copy()
    filled[moved] = np.repeat(np.arange(clients), missing)
    return filled


def _take_from_largest(sizes: NDArray[np.int64], amount: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return what each client gives when `amount` samples are taken, each from the largest client at that time.

    That cuts all clients above some level down to it; chance decides which of them keep one more.
    """
    level, too_high = 0, int(sizes.max()) + 1
    while too_high - level > 1:
        middle = (level + too_high) // 2
        if np.maximum(sizes - middle, 0).sum() >= amount:
            level = middle
        else:
            too_high = middle
    surplus = np.maximum(sizes - level, 0)
    keepers = rng.permutation(np.flatnonzero(surplus))[: surplus.sum() - amount]
    surplus[keepers] -= 1
    return surplus
