"""Per-class Dirichlet shares over the clients, with very unequal client sizes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.partition.dealing import group_by_owner, rank_within
from fedwcm.data.partition.protocol import check_count, check_labels, check_positive


@dataclass(frozen=True, kw_only=True)
class FedGraB:
    """For each class, shares q ~ Dirichlet(beta) over the clients; each sample goes to a client by q.

    Sizes come out very unequal and some clients empty. Samples then move, one at a time and at random,
    from whichever client is the largest to the clients below `min_samples`, until none is below it.
    """

    clients: int
    beta: float
    min_samples: int = 1

    def __post_init__(self) -> None:
        check_count("clients", self.clients)
        check_positive("beta", self.beta)
        check_count("min_samples", self.min_samples)

    def __call__(self, labels: NDArray[np.int64], rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """Split the samples over the clients."""
        labels = check_labels(labels, self.clients)
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
        return group_by_owner(_fill_up(owner, self.clients, self.min_samples, rng), self.clients)


def _fill_up(
    owner: NDArray[np.int64], clients: int, min_samples: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the owners after samples moved from the largest clients to those below `min_samples`."""
    sizes = np.bincount(owner, minlength=clients)
    missing = np.maximum(min_samples - sizes, 0)
    surplus = _take_from_largest(sizes, int(missing.sum()), rng)
    order = rng.permutation(owner.size)
    moved = order[rank_within(owner[order]) < surplus[owner[order]]]
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
