"""What a simulated federation gathers before round 1: the class distribution, with noise, encrypted or plainly."""

from dataclasses import dataclass

import numpy as np

from fedwcm.config.schema import Config
from fedwcm.core.batch import Federation
from fedwcm.core.disclosure import contributions, decode_total
from fedwcm.core.rng import Purpose, generator
from fedwcm.core.types import Floats, Ints, Population
from fedwcm.privacy import sum_counts
from fedwcm.privacy.options import PrivacyOptions, noise_bound, noisy_counts

BLOCK = 1 << 16
"""Clients whose distances are computed at a time, so that a million of them need little memory."""


def reported_counts(config: Config, federation: Federation) -> Ints:
    """Return the class counts that the clients report: their own, or with noise, which may be negative."""
    epsilon = config.privacy.epsilon
    if epsilon is None:
        return federation.counts
    rngs = (generator(config.run.seed, Purpose.NOISE, 0, k) for k in range(len(federation.counts)))
    pairs = zip(federation.counts, rngs, strict=True)
    return np.stack([noisy_counts(counts, epsilon, rng) for counts, rng in pairs])


@dataclass(frozen=True, eq=False)
class ClassDistribution:
    """The samples per class over all clients, their mean distance from the target, and the cost of encryption.

    The cost is None for a plain sum; else the number of clients, the bytes from and to them, and the seconds.
    `assumed` is the class distribution that the trained model will presuppose (`Components.assumed_shares`).
    """

    totals: Ints
    deviation: float
    encryption: dict[str, float] | None
    assumed: Floats | None = None


def gather_distribution(counts: Ints, target: Floats | None, privacy: PrivacyOptions) -> ClassDistribution:
    """Sum what clients with these counts add up before round 1, plainly or under homomorphic encryption."""
    shift = noise_bound(privacy.epsilon)
    if privacy.mode == "none":
        blocks = (counts[start : start + BLOCK] for start in range(0, len(counts), BLOCK))
        sums = (contributions(block, target, None, shift).sum(axis=0) for block in blocks)
        return ClassDistribution(*decode_total(sum(sums, np.zeros((), dtype=np.int64)), len(counts), shift), None)
    holders, least = privacy.key_holders, privacy.min_contributors
    rows = contributions(counts, target, privacy.levels, shift)
    result = sum_counts(rows, key_holders=holders, min_contributors=least)
    clients = len(result.contributors)
    cost = {"bytes_up": result.bytes_up, "bytes_down": result.bytes_down, "seconds": result.seconds}
    return ClassDistribution(*decode_total(result.totals, clients, shift), {"clients": clients, **cost})


def population_of(
    config: Config, totals: Ints, deviation: float, clients: int, mean_samples: float, smallest_batch: int = 1
) -> Population:
    """Return what server and clients know about the federation before the first round."""
    return Population(
        clients=clients,
        classes=len(totals),
        mean_samples=mean_samples,
        prior=totals / totals.sum(),
        rounds=config.run.rounds,
        epochs=config.local.epochs,
        batch_size=config.local.batch_size,
        steps=config.local.steps,
        momentum=config.local.momentum,
        nesterov=config.local.nesterov,
        smallest_batch=smallest_batch,
        target=config.run.target_shares,
        deviation=deviation,
    )
