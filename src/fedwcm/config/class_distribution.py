"""The class distribution as a simulated federation gathers it: with noise, under encryption, or plainly."""

from dataclasses import dataclass

import numpy as np

from fedwcm.config.schema import Config
from fedwcm.core.gathering import addends, read_sum
from fedwcm.core.rng import Purpose, generator
from fedwcm.core.types import Floats, Ints
from fedwcm.engine.federation import Federation
from fedwcm.privacy import sum_counts
from fedwcm.privacy.noise import nonempty_noisy_counts
from fedwcm.privacy.options import PrivacyOptions

BLOCK = 1 << 16
"""Clients whose distances are computed at a time, so that a million of them need little memory."""


def claimed_counts(config: Config, federation: Federation) -> Ints:
    """Return the class counts that the clients claim to have: their own, or with noise."""
    epsilon = config.privacy.epsilon
    if epsilon is None:
        return federation.counts
    rngs = (generator(config.run.seed, Purpose.NOISE, 0, k) for k in range(len(federation.counts)))
    pairs = zip(federation.counts, rngs, strict=True)
    return np.stack([nonempty_noisy_counts(counts, epsilon, rng) for counts, rng in pairs])


@dataclass(frozen=True, eq=False)
class ClassDistribution:
    """The samples per class over all clients, their mean distance from the target, and the cost of encryption.

    The cost is None for a plain sum; else the number of clients, the bytes from and to them, and the seconds.
    """

    totals: Ints
    deviation: float
    encryption: dict[str, float] | None


def gather_distribution(counts: Ints, target: Floats | None, privacy: PrivacyOptions) -> ClassDistribution:
    """Sum what clients with these counts add up before round 1, plainly or under homomorphic encryption."""
    if privacy.mode == "none":
        blocks = (counts[start : start + BLOCK] for start in range(0, len(counts), BLOCK))
        total = sum((addends(block, target, None).sum(axis=0) for block in blocks), np.zeros((), dtype=np.int64))
        return ClassDistribution(*read_sum(total, len(counts)), None)
    holders, least = privacy.key_holders, privacy.min_contributors
    found = sum_counts(addends(counts, target, privacy.levels), key_holders=holders, min_contributors=least)
    clients = len(found.contributors)
    cost = {"bytes_up": found.bytes_up, "bytes_down": found.bytes_down, "seconds": found.seconds}
    return ClassDistribution(*read_sum(found.totals, clients), {"clients": clients, **cost})
