"""Client sampling and dropout in a round."""

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


def share_of(clients: int, fraction: float) -> int:
    """Return the number of clients in this fraction of them, at least 1."""
    return max(1, round(fraction * clients))


@dataclass(frozen=True, kw_only=True)
class Participation:
    """Which clients take part in a round.

    Args:
        fraction: share of the clients sampled each round.
        sampling: `fixed` draws the same number every round; `bernoulli` selects each client independently with
            this probability (repeated while no client is selected).
        dropout: probability that a sampled client never answers.
    """

    fraction: Annotated[float, Flag("participation")] = 0.1
    sampling: Literal["fixed", "bernoulli"] = "fixed"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require(0 < self.fraction <= 1, "fraction", self.fraction, "in (0, 1]")
        require_choices(self)
        require(0 <= self.dropout < 1, "dropout", self.dropout, "in [0, 1)")

    def cohort_size(self, clients: int) -> int:
        """Return how many of these clients are sampled; with `bernoulli`, on average."""
        return share_of(clients, self.fraction)

    def sampled(self, clients: int, seed: int, round_: int) -> Ints:
        """Return the ids of the clients asked to train, ascending; at least one."""
        rng = generator(seed, Purpose.COHORT, round_)
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
