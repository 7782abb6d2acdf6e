"""What clients disclose of their class counts: sums before round 1, and the statistics that a method computes.

Before round 1 all clients add up their samples per class, and how far each of them is from the target. Only the
sums are needed, so under encryption, which adds up whole numbers, the server learns nothing else. But the sum of
exact distances, next to the class totals and every client's number of samples, may determine the counts of each
client. So may a statistic in full precision: FedWCM's score times the samples is a sum of whole numbers with known
weights. Rounded to few levels neither does: each level is wide enough for several counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedwcm.balance import checked_distribution, local_deviations
from fedwcm.core.method import ClientStatistics
from fedwcm.core.types import Floats, Ints, Population, Report

SAMPLES_PER_LEVEL = 5
"""A level is at least this many samples wide, so that at least as many different counts fit a reported level."""
_ROUNDING = 1e-9
"""Share of a level by which a value may miss a boundary that it lies on."""


@dataclass(frozen=True, eq=False)
class Disclosure:
    """What clients report of their statistics.

    Args:
        levels: different values that a statistic may have at most; None reports it as it is.
        noisy_counts: for each client the counts that it claims instead of its own; None for its own.
    """

    levels: int | None = None
    noisy_counts: Mapping[int, Ints] | None = None

    def report(self, method: ClientStatistics, ids: Ints, counts: Ints, population: Population) -> Report:
        """Return the statistics that these clients report, given their own counts `(K, C)`."""
        claimed = counts if self.noisy_counts is None else np.stack([self.noisy_counts[int(k)] for k in ids])
        exact = method.client_statistics(claimed, population)
        if self.levels is None:
            return exact
        levels = number_of_levels(claimed.sum(axis=1), self.levels)
        bounds = method.statistics_range(population)
        return {key: in_levels(values, levels, *bounds[key]) for key, values in exact.items()}


def number_of_levels(samples: Ints, most: int) -> Ints:
    """Return how many levels the range of a statistic has for clients with these numbers of samples."""
    levels: Ints = np.clip(samples // SAMPLES_PER_LEVEL, 1, most)
    return levels


def in_levels(values: Floats, levels: Ints, least: float, most: float) -> Floats:
    """Return the middle of the level that each value is in; the levels divide the range evenly."""
    if most <= least:
        return np.full(len(values), least)
    place = np.floor((values - least) / (most - least) * levels + _ROUNDING)
    middle: Floats = least + (np.clip(place, 0, levels - 1) + 0.5) * (most - least) / levels
    return middle


UNIT = 2.0**-20
"""A distance is a whole number of these, so that its sum is exact in any order."""

FARTHEST = 2.0
"""No distribution is farther from another, so no mean of such distances is larger, whatever clients send."""


def contributions(counts: Ints, target: Floats | None, levels: int | None, shift: int = 0) -> Ints:
    """Return what clients with these counts `(K, C)` add: the counts and ‖p̂ − p_k‖₁ in units, `(K, C + 1)`.

    `levels` is the number of different distances that a client may have at most; None adds exact ones. Noise makes
    counts negative, which encryption cannot add, so `shift` is added to each of them: 0 if there is no noise.
    """
    shares = checked_distribution("run.target", target, counts.shape[1])
    plausible = as_counts(counts) if shift else counts
    distances = local_deviations(plausible, shares)
    if levels is not None:
        farthest = float(2 * (1 - shares.min()))
        distances = in_levels(distances, number_of_levels(plausible.sum(axis=1), levels), 0.0, farthest)
    return np.column_stack([counts + shift, np.rint(distances / UNIT).astype(np.int64)])


def decode_total(total: Ints, clients: int, shift: int = 0) -> tuple[Ints, float]:
    """Return the class totals, and the mean distance of the clients from the target."""
    totals = as_counts(total[None, :-1] - clients * shift)[0] if shift else total[:-1]
    return totals, min(float(total[-1]) * UNIT / clients, FARTHEST)


def as_counts(noisy: Ints) -> Ints:
    """Return possible counts for rows with noise: none below 0, and a sample of each class in place of none."""
    counts: Ints = np.maximum(noisy, 0)
    counts[~counts.any(axis=1)] = 1
    return counts
