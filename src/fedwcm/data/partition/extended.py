"""A fixed number of classes per client, and Dirichlet shares of each class over those that have it."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.partition.dealing import deal_counts, log_dirichlet, renormalise
from fedwcm.data.partition.protocol import check_count, check_labels, check_positive


@dataclass(frozen=True, kw_only=True)
class ExtendedDirichlet:
    """Each client is given `classes_per_client` classes; each class is shared by Dirichlet(beta) over its clients.

    The extended Dirichlet strategy of Li and Lyu (Convergence analysis of sequential federated learning on
    heterogeneous data, NeurIPS 2023), which sets the number of classes and the sizes apart. Classes are given to
    equally many clients (within one), drawn at random; a class with fewer samples than clients may be given to
    fewer. Sizes are unequal. Every sample is used once, and each client has at least one sample of a class of
    its own. Clients that are too few for all classes get more of them: ceil(classes / clients).
    """

    clients: int
    beta: float
    classes_per_client: int = 2

    def __post_init__(self) -> None:
        check_count("clients", self.clients)
        check_positive("beta", self.beta)
        check_count("classes_per_client", self.classes_per_client)

    def __call__(self, labels: NDArray[np.int64], rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """Split the samples over the clients."""
        labels = check_labels(labels, self.clients)
        stock = np.bincount(labels)
        present = np.flatnonzero(stock)
        width = min(max(self.classes_per_client, math.ceil(present.size / self.clients)), present.size)
        has_class, counts = _give_classes(stock[present], self.clients, width, rng)
        shares = renormalise(log_dirichlet(self.beta, (present.size, self.clients), rng), has_class.T)
        upto = np.cumsum(shares, axis=1)
        rest = (stock[present] - counts.sum(axis=0))[:, None]
        counts += np.diff((upto / upto[:, -1:] * rest).astype(np.int64), axis=1, prepend=0).T
        table = np.zeros((self.clients, stock.size), dtype=np.int64)
        table[:, present] = rng.permutation(counts)
        return deal_counts(table, labels, rng)


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
