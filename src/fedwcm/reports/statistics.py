"""Mean and spread over seeds, and paired tests: runs of one seed share their data, division and initial model."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, final

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit  # scipy.stats takes a second to import

Place = TypeVar("Place", bound=Hashable)

LEVEL = 0.95
"""Confidence level: a difference counts if its corrected p-value is below 1 − LEVEL."""

MARGIN = 0.01
"""Accuracies whose difference is known to be at most this are equivalent: one point."""

FEW_SEEDS = 5
"""Seeds from which methods are called equivalent in a table; with fewer only the highest is marked."""

MOST_SEEDS = 1000
"""Seeds up to which it is worth saying how many a verdict needs."""

RESAMPLES = 2000
"""Draws of the rows of a test set, with replacement, of a bootstrap interval."""

Verdict = Literal["better", "worse", "equivalent", "undecided", "no verdict"]


@final
@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (0 for one value) of a number over runs."""

    mean: float
    std: float
    runs: int


@dataclass(frozen=True)
class PairedTest:
    """The mean of paired differences, its standard error, and the p-value of there being no difference."""

    mean: float
    error: float
    number: int
    p: float

    def interval(self, alpha: float = 1 - LEVEL) -> tuple[float, float]:
        """Return the confidence interval of level 1 − alpha: it leaves out 0 just if p is below alpha."""
        if self.error == 0:  # equal differences: their signs are the only evidence
            return (self.mean, self.mean) if self.p < alpha else (min(0.0, self.mean), max(0.0, self.mean))
        reach = float(stdtrit(self.number - 1, 1 - alpha / 2)) * self.error
        return self.mean - reach, self.mean + reach

    @property
    def low(self) -> float:
        return self.interval()[0]

    @property
    def high(self) -> float:
        return self.interval()[1]


@dataclass(frozen=True)
class Difference:
    """One method against another with a lower mean, over the seeds that both have.

    `test` is None for fewer than two such seeds; `corrected` is its p-value after Holm's correction for the
    comparisons of `method` with all others that can be tested. `ahead` says whether the method is better on these
    seeds, too. Differences up to `margin` do not matter.
    """

    method: str
    other: str
    seeds: int
    test: PairedTest | None
    corrected: float | None
    ahead: bool
    margin: float = MARGIN

    @property
    def verdict(self) -> Verdict:
        """What the method is: better, worse, equivalent within the margin, or none of these as far as is known."""
        if self.test is None or self.corrected is None:
            return "no verdict"
        if self.corrected < 1 - LEVEL:
            return "better" if self.ahead else "worse"
        low, high = self.interval
        return "equivalent" if -self.margin <= low and high <= self.margin else "undecided"

    @property
    def interval(self) -> tuple[float, float]:
        """The confidence interval at the level of Holm's step: it leaves out 0 just if the verdict does."""
        assert self.test is not None
        return self.test.interval(self._alpha)

    @property
    def _alpha(self) -> float:
        assert self.test is not None
        assert self.corrected is not None
        return (1 - LEVEL) * (self.test.p / self.corrected if self.corrected else 1.0)

    @property
    def seeds_needed(self) -> int | None:
        """Seeds that would decide in four cases of five if difference and spread stay; None for very many."""
        assert self.test is not None
        numbers, distance = np.arange(max(self.seeds + 1, FEW_SEEDS), MOST_SEEDS + 1), abs(self.test.mean)
        errors = self.test.error * (self.test.number / numbers) ** 0.5
        reach = stdtrit(numbers - 1, 1 - self._alpha / 2) * errors
        decided = reach + stdtrit(numbers - 1, 0.8) * errors <= distance
        if self.test.error == 0:
            decided = 2.0 ** (1 - numbers) < self._alpha
        decided |= distance + reach <= self.margin
        return int(numbers[np.argmax(decided)]) if decided.any() else None


def spread_if_any(values: Iterable[float | None]) -> Spread | None:
    """Return the mean and standard deviation of the numbers that are known; None if none is."""
    known = [value for value in values if value is not None]
    return spread(known) if known else None


def spread(values: Sequence[float]) -> Spread:
    """Return the mean and standard deviation of at least one number."""
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
    """Return the t-test of paired differences; None for fewer than two.

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
    by_signs = PairedTest(mean, 0.0, number, 1.0 if mean == 0 else 2.0 ** (1 - number))
    by_bound = _t_test(mean, largest_std, number) if largest_std > 1e-12 else by_signs
    return min(by_signs, by_bound, key=lambda test: test.p)


def _t_test(mean: float, std: float, number: int) -> PairedTest:
    error = std / number**0.5
    return PairedTest(mean, error, number, 2 * float(stdtr(number - 1, -abs(mean) / error)))


def differences(
    values: Mapping[str, Mapping[Any, float]], *, lower_is_better: bool = False, margin: float = MARGIN
) -> list[Difference]:
    """Return every pair of methods, the better first; pairs of the best method come first.

    Methods that cannot be judged beside the others rank behind them: those of a single seed, and those of fewer
    than `FEW_SEEDS` where others have as many.

    Args:
        values: for each method a number per seed.
        lower_is_better: whether a method with a lower mean ranks higher.
        margin: the difference up to which two methods are equivalent.
    """
    sign = -1.0 if lower_is_better else 1.0
    means = {name: float(np.mean(list(values[name].values()))) for name in values}
    enough = FEW_SEEDS if any(len(numbers) >= FEW_SEEDS for numbers in values.values()) else 2
    ranked = sorted(values, key=lambda name: (len(values[name]) < enough, -sign * means[name]))
    pairs: list[Difference] = []
    for place, method in enumerate(ranked):
        others = [other for other in ranked if other != method]
        tests = [_test(values[method], values[other]) for other in others]
        corrected = iter(holm([test.p for test in tests if test is not None]))
        p_values = [None if test is None else next(corrected) for test in tests]
        for other, test, p in list(zip(others, tests, p_values, strict=True))[place:]:
            seeds = len(values[method].keys() & values[other].keys())
            ahead = test is not None and sign * test.mean > 0
            pairs.append(Difference(method, other, seeds, test, p, ahead, margin))
    return pairs


def bootstrap_interval(differences: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % interval of the mean of these numbers, one per row, from rows drawn with replacement."""
    values, counts = np.unique(differences, return_counts=True)
    rows = len(differences)
    draws = np.random.default_rng(0).multinomial(rows, counts / rows, RESAMPLES)
    low, high = np.quantile(draws @ values / rows, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def holm(p_values: Sequence[float]) -> list[float]:
    """Apply Holm's correction of p-values for their number."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(np.argsort(p_values)):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[index]))
        corrected[index] = largest
    return corrected


def _test(values: Mapping[Hashable, float], others: Mapping[Hashable, float]) -> PairedTest | None:
    """Return the test over the seeds that both have. The spread of a difference is at most the sum of theirs."""
    pairs = [(value, others[seed]) for seed, value in values.items() if seed in others]
    largest = sum(spread(side).std for side in zip(*pairs, strict=True))
    return paired_test([value - other for value, other in pairs], largest)
