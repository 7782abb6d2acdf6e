"""Client sampling and dropout in a round."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from fedwcm.core.checks import require, require_choices
from fedwcm.core.rng import Purpose, generator
from fedwcm.utils.field_types import Flag

Ints = NDArray[np.int64]

TRIES = 1000
"""How often Bernoulli sampling is repeated if it selects no client."""


CANDIDATES = 10
"""Clients among which balanced sampling chooses the next one: few enough for all clients to have their turn."""


def share_of(clients: int, fraction: float) -> int:
    """Return the number of clients in this fraction of them, at least 1."""
    return max(1, round(fraction * clients))


@dataclass(frozen=True, kw_only=True)
class Participation:
    """Which clients take part in a round.

    Args:
        fraction: share of the clients sampled each round.
        sampling: `fixed` draws the same number every round; `bernoulli` selects each client independently with
            this probability (repeated while no client is selected); `balanced` draws the same number, so that the
            round's summed class counts are nearly even (Zhang et al., Fed-CBS, 2023); needs each client's counts.
        dropout: probability that a sampled client never answers.
    """

    fraction: Annotated[float, Flag("participation")] = 0.1
    sampling: Literal["fixed", "bernoulli", "balanced"] = "fixed"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require(0 < self.fraction <= 1, "fraction", self.fraction, "in (0, 1]")
        require_choices(self)
        require(0 <= self.dropout < 1, "dropout", self.dropout, "in [0, 1)")

    def cohort_size(self, clients: int) -> int:
        """Return how many of these clients are sampled; with `bernoulli`, on average."""
        return share_of(clients, self.fraction)

    def sampled(self, clients: int, seed: int, round_: int, counts: Callable[[], Ints] | None = None) -> Ints:
        """Return the ids of the clients asked to train, ascending; at least one.

        `counts` gives each client's samples per class, for `balanced`.
        """
        rng = generator(seed, Purpose.COHORT, round_)
        if self.sampling == "balanced":
            if counts is None:
                raise ValueError("participation.sampling = 'balanced' needs the class counts of every client")
            return balanced_cohort(counts(), self.cohort_size(clients), rng)
        if self.sampling == "fixed":
            return np.sort(rng.choice(clients, self.cohort_size(clients), replace=False, shuffle=False))
        for _ in range(TRIES):
            chosen = np.flatnonzero(rng.random(clients) < self.fraction)
            if len(chosen):
                return chosen
        return rng.integers(clients, size=1)  # with such a small fraction, more than one client is unlikely

    def answering(self, sampled: Ints, seed: int, round_: int) -> Ints:
        """Return the ids of the sampled clients that answer; possibly none."""
        if not self.dropout:
            return sampled
        draws = generator(seed, Purpose.ANSWERS, round_).random(len(sampled))
        return sampled[draws >= self.dropout]


def balanced_cohort(counts: Ints, size: int, rng: np.random.Generator) -> Ints:
    """Return the ids of so many clients, ascending, whose summed class counts are nearly even.

    The first client is drawn at random. Each other one is, of some drawn at random, the one that brings the
    shares of the classes nearest to even ones, by the sum of squares.
    """
    waiting = rng.permutation(len(counts))
    chosen, total, waiting = [waiting[0]], counts[waiting[0]].astype(np.float64), waiting[1:]
    while len(chosen) < size:
        drawn = rng.choice(len(waiting), min(CANDIDATES, len(waiting)), replace=False)
        sums = total + counts[waiting[drawn]]
        shares = sums / sums.sum(axis=1, keepdims=True)
        best = drawn[np.argmin(((shares - 1.0 / shares.shape[1]) ** 2).sum(axis=1))]
        chosen.append(waiting[best])
        total, waiting = total + counts[waiting[best]], np.delete(waiting, best)
    return np.sort(np.array(chosen, dtype=np.int64))
