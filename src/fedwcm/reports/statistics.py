"""Mean and spread over seeds, and paired tests: runs of one seed share their data, division and initial model."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy.special import stdtr, stdtrit  # scipy.stats takes a second to import

Place = TypeVar("Place", bound=Hashable)

LEVEL = 0.95
"""Confidence level: a difference counts if its corrected p-value is below 1 − LEVEL."""


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (0 for one value) of a number over runs."""

    mean: float
    std: float
    runs: int


@dataclass(frozen=True)
class PairedTest:
    """The mean of paired differences, its confidence interval, and the p-value of there being no difference."""

    mean: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class Difference:
    """One method against another with a lower mean, over the seeds that both have.

    `test` is None for fewer than two such seeds; `corrected` is its p-value after Holm's correction for the
    comparisons of `method` with all others that can be tested. `ahead` says whether the method is better on these
    seeds, too.
    """

    method: str
    other: str
    seeds: int
    test: PairedTest | None
    corrected: float | None
    ahead: bool

    @property
    def distinguishable(self) -> bool:
        """Whether the method is better than the other by more than chance explains."""
        return self.ahead and self._significant

    @property
    def reversed(self) -> bool:
        """Whether on the seeds that both have it is the other that is better by more than chance explains."""
        return not self.ahead and self._significant

    @property
    def _significant(self) -> bool:
        return self.corrected is not None and self.corrected < 1 - LEVEL


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation of at least one number."""
    return Spread(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0, len(values))


def seed_test(differences: Mapping[tuple[Place, int], float]) -> PairedTest | None:
    """Return the paired test of differences by place and seed, with the seeds as units; None for fewer than two.

    A seed's value is its mean over the places that all seeds have. Places of one seed share the initial model and
    the draws of clients, so that they are not independent of each other.
    """
    seeds = {seed for _, seed in differences}
    shared = {place for place, _ in differences if all((place, seed) in differences for seed in seeds)}
    if not shared:
        return None
    return paired_test([float(np.mean([differences[place, s] for place in shared])) for s in sorted(seeds)])


def paired_test(differences: Sequence[float], largest_std: float = 0.0) -> PairedTest | None:
    """The t-test of paired differences; None for fewer than two.

    Where all are equal, as with metrics of a few test samples, they have no spread to judge by. Then the p-value
    is that of equal signs by chance or, if smaller, that of the t-test with `largest_std`, which bounds it.
    """
    number = len(differences)
    if number < 2:
        return None
    mean = float(np.mean(differences))
    std = float(np.std(differences, ddof=1))
    if np.ptp(differences) > 1e-12 * max(1.0, abs(mean)):
        return _t_test(mean, std, number)
    by_signs = PairedTest(mean, mean, mean, 1.0 if mean == 0 else 2.0 ** (1 - number))
    bounded = _t_test(mean, largest_std, number) if largest_std > 1e-12 else by_signs
    return min(by_signs, bounded, key=lambda test: test.p)


def _t_test(mean: float, std: float, number: int) -> PairedTest:
    error = std / number**0.5
    reach = float(stdtrit(number - 1, (1 + LEVEL) / 2)) * error
    return PairedTest(mean, mean - reach, mean + reach, 2 * float(stdtr(number - 1, -abs(mean) / error)))


def differences(
    values: Mapping[str, Mapping[Hashable, float]], *, lower_is_better: bool = False
) -> list[Difference]:
    """Return every pair of methods, the better first; pairs of the best method come first.

    Methods of a single seed, which cannot be judged, rank behind all others.

    Args:
        values: for each method a number per seed.
        lower_is_better: whether a method with a lower mean ranks higher.
    """
    sign = -1.0 if lower_is_better else 1.0
    means = {name: float(np.mean(list(values[name].values()))) for name in values}
    ranked = sorted(values, key=lambda name: (len(values[name]) == 1, -sign * means[name]))
    found: list[Difference] = []
    for place, method in enumerate(ranked):
        others = [other for other in ranked if other != method]
        tests = [_tested(values[method], values[other]) for other in others]
        corrected = iter(holm([test.p for test in tests if test is not None]))
        p_values = [None if test is None else next(corrected) for test in tests]
        for other, test, p in list(zip(others, tests, p_values, strict=True))[place:]:
            seeds = len(values[method].keys() & values[other].keys())
            found.append(Difference(method, other, seeds, test, p, test is not None and sign * test.mean > 0))
    return found


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction of p-values for their number."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(np.argsort(p_values)):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[index]))
        corrected[index] = largest
    return corrected


def _tested(values: Mapping[Hashable, float], others: Mapping[Hashable, float]) -> PairedTest | None:
    """The test over the seeds that both have. The spread of a difference is at most the sum of theirs."""
    pairs = [(value, others[seed]) for seed, value in values.items() if seed in others]
    largest = sum(spread(side).std for side in zip(*pairs, strict=True))
    return paired_test([value - other for value, other in pairs], largest)
