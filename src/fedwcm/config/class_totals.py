"""The class distribution as a simulated federation gathers it: with noise, under encryption, or plainly."""

import numpy as np

from fedwcm.config.schema import Config
from fedwcm.core.rng import Purpose, generator
from fedwcm.core.types import Ints
from fedwcm.engine.federation import Federation
from fedwcm.privacy import sum_counts
from fedwcm.privacy.noise import claimed_counts as noisy_claim
from fedwcm.privacy.options import PrivacyOptions


def claimed_counts(config: Config, federation: Federation) -> Ints:
    """Return the class counts that the clients claim to have: their own, or with noise."""
    epsilon = config.privacy.epsilon
    if epsilon is None:
        return federation.counts
    rngs = (generator(config.run.seed, Purpose.NOISE, 0, k) for k in range(len(federation.counts)))
    return np.stack([noisy_claim(row, epsilon, rng) for row, rng in zip(federation.counts, rngs, strict=True)])


def class_totals(counts: Ints, privacy: PrivacyOptions) -> tuple[Ints, dict[str, float] | None]:
    """Return the samples per class over all clients, and what it cost to sum them under homomorphic encryption.

    The cost is None for a plain sum; else the number of clients, the bytes from and to them, and the seconds.
    """
    if privacy.mode == "none":
        totals: Ints = counts.sum(axis=0)
        return totals, None
    holders, least = privacy.key_holders, privacy.min_contributors
    found = sum_counts(counts, key_holders=holders, min_contributors=least)
    cost = {"bytes_up": found.bytes_up, "bytes_down": found.bytes_down, "seconds": found.seconds}
    return found.totals, {"clients": len(found.contributors), **cost}
