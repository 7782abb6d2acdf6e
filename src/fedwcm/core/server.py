"""The server's side of a round: choose the clients, combine what they sent, update the model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedwcm.core.checks import require
from fedwcm.core.method import Method, mean_weights
from fedwcm.core.rng import Purpose, generator
from fedwcm.core.types import Cohort, Combination, Floats, Ints, State, Vec


@dataclass(frozen=True, kw_only=True)
class Participation:
    """Who takes part in a round.

    Args:
        participation: share of the clients sampled each round.
        sampling: `fixed` draws the same number every round; `bernoulli` lets each client in by itself with
            this probability (drawn again until somebody is in).
        dropout: probability that a sampled client never answers.
    """

    participation: float = 0.1
    sampling: Literal["fixed", "bernoulli"] = "fixed"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require(0 < self.participation <= 1, "participation", self.participation, "in (0, 1]")
        require(0 <= self.dropout < 1, "dropout", self.dropout, "in [0, 1)")

    def sampled(self, clients: int, seed: int, round_: int) -> Ints:
        """The clients asked to train, by ascending id; never none."""
        rng = generator(seed, Purpose.COHORT, round_)
        if self.sampling == "fixed":
            size = max(1, round(self.participation * clients))
            return np.sort(rng.choice(clients, size, replace=False, shuffle=False))
        while True:
            chosen = np.flatnonzero(rng.random(clients) < self.participation)
            if len(chosen):
                return chosen

    def answering(self, sampled: Ints, seed: int, round_: int) -> Ints:
        """Those of the sampled clients that answer; possibly none."""
        if not self.dropout:
            return sampled
        draws = generator(seed, Purpose.ANSWERS, round_).random(len(sampled))
        return sampled[draws >= self.dropout]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a round made: the next model, buffers and state, and what is worth recording of it."""

    x: Vec
    buffers: Vec
    state: State
    weights: Floats
    diagnostics: dict[str, float]


def combine(uploads: Mapping[str, Tensor], combinations: Mapping[str, Combination]) -> State:
    """Form the named linear combinations; those of one upload share a single pass over it."""
    by_key: dict[str, list[str]] = {}
    for name, combination in combinations.items():
        by_key.setdefault(combination.key, []).append(name)
    combined: State = {}
    for key, names in by_key.items():
        rows = uploads[key]
        table = np.stack([combinations[name].weights for name in names])
        weights = torch.as_tensor(table, dtype=rows.dtype, device=rows.device)
        sums = (weights @ rows.reshape(len(rows), -1)).reshape(len(names), *rows.shape[1:])
        combined.update(zip(names, sums, strict=True))
    return combined


def update(
    method: Method, x: Vec, buffers: Vec, s: State, probed: State, uploads: State, cohort: Cohort
) -> Outcome:
    """Aggregate the uploads (one row a client of the cohort) and let the method update the model."""
    combinations = method.combine(s, cohort)
    agg = combine(uploads, combinations)
    if len(buffers):
        averaged = Combination("buffers", mean_weights("samples", cohort))
        buffers = combine(uploads, {"buffers": averaged})["buffers"]
    x_next, s_next = method.update(x, s, {**probed, **agg}, cohort)
    return Outcome(x_next, buffers, s_next, method.weights(s, cohort), method.diagnostics(s, cohort))
