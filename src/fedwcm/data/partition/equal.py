"""Equal client sizes, Dirichlet class mixes, exact class totals."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.partition.checks import check_count, check_labels, check_positive
from fedwcm.data.partition.dealing import deal_counts, equal_sizes
from fedwcm.data.partition.dirichlet import draw_without_reuse, log_dirichlet


@dataclass(frozen=True, kw_only=True)
class Equal:
    """Each client draws its samples from its own Dirichlet(beta) prior over the classes.

    Samples are drawn without reuse, by all clients in turn, and a prior is renormalised when a class is
    used up. Client sizes differ by at most one and every sample is used once, so both the sizes and the
    class totals are exact. Because a rare class runs out early, the mixes come closer to the global one
    as the tail grows: `equal-ipf` is the harder variant.
    """

    clients: int
    beta: float

    def __post_init__(self) -> None:
        check_count("clients", self.clients)
        check_positive("beta", self.beta)

    def __call__(self, labels: NDArray[np.int64], rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """Split the samples over the clients."""
        labels = check_labels(labels, self.clients)
        stock = np.bincount(labels)
        sizes = equal_sizes(labels.size, self.clients, rng)
        log_prior = log_dirichlet(self.beta, (self.clients, stock.size), rng)
        return deal_counts(draw_without_reuse(log_prior, sizes, stock, rng), labels, rng)
