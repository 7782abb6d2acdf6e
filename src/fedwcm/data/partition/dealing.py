"""The steps that most partitions share: client sizes, shuffled class order, and dealing samples out."""

import numpy as np
from numpy.typing import NDArray


def equal_sizes(samples: int, clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Client sizes that differ by at most one. Chance decides who gets one more."""
    sizes = np.full(clients, samples // clients, dtype=np.int64)
    sizes[: samples % clients] += 1
    return rng.permutation(sizes)


def shuffled_by_class(labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """All indices, class after class, in random order within each class."""
    order = rng.permutation(labels.size)
    return order[np.argsort(labels[order], kind="stable")]


def rank_within(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each entry, how many earlier entries are of the same group."""
    order = np.argsort(groups, kind="stable")
    sizes = np.bincount(groups)
    rank = np.empty(groups.size, dtype=np.int64)
    rank[order] = np.arange(groups.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return rank


def parts_of(owner: NDArray[np.int64], clients: int) -> list[NDArray[np.int64]]:
    """Each client's indices, sorted, from the owner of each sample."""
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.cumsum(np.bincount(owner, minlength=clients))[:-1])


def deal_in_order(
    order: NDArray[np.int64], receivers: NDArray[np.int64], amounts: NDArray[np.int64], clients: int
) -> list[NDArray[np.int64]]:
    """Deal the samples in this order: the first amounts[0] go to receivers[0], and so on."""
    owner = np.empty(order.size, dtype=np.int64)
    owner[order] = np.repeat(receivers, amounts)
    return parts_of(owner, clients)


def deal_counts(
    counts: NDArray[np.int64], labels: NDArray[np.int64], rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Give client k exactly counts[k, c] random samples of class c. The counts must use up each class."""
    clients, classes = counts.shape
    receivers = np.tile(np.arange(clients), classes)
    return deal_in_order(shuffled_by_class(labels, rng), receivers, counts.T.ravel(), clients)
