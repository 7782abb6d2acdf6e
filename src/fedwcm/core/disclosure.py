"""How exactly clients report the statistics that a method computes from their class counts.

A statistic in full precision, next to the number of samples, may determine the counts: FedWCM's score times the
samples is a sum of whole numbers with known weights. Rounded to few levels it does not: each level is wide enough
for several counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedwcm.core.mixins import ClientStatistics
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
        told = counts if self.noisy_counts is None else np.stack([self.noisy_counts[int(k)] for k in ids])
        exact = method.client_statistics(told, population)
        if self.levels is None:
            return exact
        levels = number_of_levels(told.sum(axis=1), self.levels)
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
