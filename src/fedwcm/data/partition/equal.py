"""Clients of equal size: the same class mix, or Dirichlet mixes that meet the class totals."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedwcm.core.checks import require_count
from fedwcm.data.partition import protocol

# Every client must be able to hold every class, or some margins have no solution.
_SMALLEST_PRIOR = 1e-30
_TOLERANCE = 1e-4
_MAX_ITERATIONS = 1000


@dataclass(frozen=True, kw_only=True)
class IID:
    """Shuffled samples in equal parts: sizes differ by at most one and every sample is used once."""

    clients: int

    def __post_init__(self) -> None:
        require_count("clients", self.clients)

    def __call__(self, labels: NDArray[np.int64], rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """Split the samples over the clients."""
        protocol.require_samples(labels, self.clients)
        sizes = protocol.equal_sizes(labels.size, self.clients, rng)
        return protocol.deal_in_order(rng.permutation(labels.size), np.arange(self.clients), sizes, self.clients)


@dataclass(frozen=True, kw_only=True)
class Equal(protocol.DirichletPartition):
    """Clients of equal size, each drawing its samples from its own Dirichlet(beta) prior over the classes.

    Samples are drawn without reuse, by all clients in turn, and a prior is renormalised when a class is
    used up. Client sizes differ by at most one and every sample is used once, so both the sizes and the
    class totals are exact. Because a rare class runs out early, the mixes come closer to the global one
    as the tail grows: `equal-ipf` is the harder variant.
    """

    def __call__(self, labels: NDArray[np.int64], rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """Split the samples over the clients."""
        protocol.require_samples(labels, self.clients)
        stock = np.bincount(labels)
        sizes = protocol.equal_sizes(labels.size, self.clients, rng)
        log_prior = protocol.log_dirichlet(self.beta, (self.clients, stock.size), rng)
        return protocol.deal_counts(protocol.draw_without_reuse(log_prior, sizes, stock, rng), labels, rng)


@dataclass(frozen=True, kw_only=True)
class EqualIPF(protocol.DirichletPartition):
    """Clients of equal size: Dirichlet(beta) priors, scaled to both margins by iterative proportional fitting.

    The fit keeps each prior's odds as far as the client sizes and the class totals permit, so the mixes
    stay further from the global one than with `equal`. Client sizes differ by at most one and every
    sample is used once: the fitted table is rounded down, and what is missing is drawn by its fractions.
    """

    def __call__(self, labels: NDArray[np.int64], rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """Split the samples over the clients."""
        protocol.require_samples(labels, self.clients)
        stock = np.bincount(labels)
        present = np.flatnonzero(stock)
        sizes = protocol.equal_sizes(labels.size, self.clients, rng)
        log_prior = protocol.log_dirichlet(self.beta, (self.clients, present.size), rng)
        prior = np.maximum(protocol.renormalise(log_prior), _SMALLEST_PRIOR)
        counts = np.zeros((self.clients, stock.size), dtype=np.int64)
        counts[:, present] = _round_to_margins(
            _fit_margins(prior, sizes, stock[present]), sizes, stock[present], rng
        )
        return protocol.deal_counts(counts, labels, rng)


def _fit_margins(
    prior: NDArray[np.float64], sizes: NDArray[np.int64], stock: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the prior with rows and columns scaled to the sizes and the stock, neither of them exceeded."""
    column = np.ones(stock.size)
    for _ in range(_MAX_ITERATIONS):
        row = sizes / (prior @ column)
        excess = column * (row @ prior) / stock
        column /= excess
        if np.abs(excess - 1).max() < _TOLERANCE:
            break
    table = prior * row[:, None] * column
    return np.asarray(table * np.minimum(1, sizes / table.sum(axis=1))[:, None], dtype=np.float64)


def _round_to_margins(
    table: NDArray[np.float64],
    sizes: NDArray[np.int64],
    stock: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Return whole numbers with exact margins, none below the table's entry rounded down."""
    whole = np.floor(table).astype(np.int64)
    log_fraction = np.log(np.maximum(table - whole, _SMALLEST_PRIOR))
    return whole + protocol.draw_without_reuse(
        log_fraction, sizes - whole.sum(axis=1), stock - whole.sum(axis=0), rng
    )
