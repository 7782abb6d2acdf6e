"""BalanceFL's split: sorted samples, rarest class first, dealt in blocks."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.partition.dealing import deal_in_order, equal_sizes, shuffle_by_class
from fedwcm.data.partition.protocol import check_count, check_labels, check_positive


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
        check_count("clients", self.clients)
        check_positive("tau_ratio", self.tau_ratio)

    def __call__(self, labels: NDArray[np.int64], rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """Split the samples over the clients."""
        labels = check_labels(labels, self.clients)
        counts = np.bincount(labels)
        sizes = equal_sizes(labels.size, self.clients, rng)
        smallest_class = counts[counts > 0].min()
        block = int(np.clip(self.tau_ratio * smallest_class, 1, labels.size))

        rarity = np.empty(counts.size, dtype=np.int64)
        rarity[np.argsort(counts, kind="stable")] = np.arange(counts.size)
        rounds = math.ceil(sizes.max() / block)
        receivers = rng.permuted(np.tile(np.arange(self.clients), (rounds, 1)), axis=1)
        amounts = np.clip(sizes[receivers] - block * np.arange(rounds)[:, None], 0, block)
        order = shuffle_by_class(rarity[labels], rng)
        return deal_in_order(order, receivers.ravel(), amounts.ravel(), self.clients)
