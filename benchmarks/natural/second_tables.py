"""The tables of the second judgement: `auto` beside FedAvg and beside the best of all arms, tail by tail."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import t as student

from benchmarks.natural.arms import JUDGED, RACE, TRIED
from benchmarks.natural.tables import NATURAL, Curve, print_table

Record = dict[str, Any]
Runs = Mapping[tuple[str, str, int, int], Record]
WISHES = {"balanced accuracy": 0.0, "the mean of both": 0.5, "accuracy": 1.0}
"""What a user may want, as the weight of accuracy; the rest is balanced accuracy."""


@dataclass(frozen=True)
class Tail:
    """The runs on one set of clients, with one class mix of the validation and test data."""

    name: str
    runs: Runs
    seeds: tuple[int, ...]

    @property
    def mix(self) -> str:
        """The class mix of its test: sites and Dirichlet sets are balanced unless they are weighted."""
        any_run = next(iter(self.runs.values()))
        is_balanced = self.name == "sites" or (f"val{NATURAL}" in any_run and not self.name.endswith(NATURAL))
        return "uniform" if is_balanced else "natural"

    def curve(self, part: str, arm: str, seed: int, draw: int = 0) -> Curve | None:
        """Return the curve of a run on validation or test data; None if it diverged."""
        record = self.runs[self.name.removesuffix(NATURAL), arm, seed, draw]
        curve: Curve | None = record.get(part + NATURAL * self.name.endswith(NATURAL))
        return curve

    def reached(self, arm: str, seed: int, weight: float, strength: "Strength") -> float:
        """Return what an arm reaches on test data; 0 if it diverged."""
        curve = self.curve("test", arm, seed)
        return 0.0 if curve is None else values(curve, weight)[strength(self, arm, seed, weight)]

    def choose(self, seed: int, weight: float, draws: int, arms: Mapping[str, str]) -> str:
        """Return the arm whose runs, as trained, have the highest mean on the draws of validation data."""
        present = [draw for draw in range(draws) if (self._set, TRIED[0], seed, draw) in self.runs]

        def score(arm: str) -> float:
            curves = [self.curve("val", arms[arm], seed, draw) for draw in present]
            return float(np.mean([0.0 if c is None else values(c, weight)[plain(c)] for c in curves]))

        return max(arms, key=score)

    @property
    def _set(self) -> str:
        return self.name.removesuffix(NATURAL)


Strength = Callable[[Tail, str, int, float], int]
"""Returns the strength, as a position on the curve, at which an arm is used."""


def values(curve: Curve, weight: float) -> list[float]:
    """Return accuracy and balanced accuracy, weighted, along a curve."""
    return [weight * point["accuracy"] + (1 - weight) * point["balanced"] for point in curve]


def plain(curve: Curve) -> int:
    """Return the place of strength 0."""
    return [point["tau"] for point in curve].index(0.0)


def highest(curve: Curve, weight: float) -> int:
    """Return the place of the highest value; of equal ones that of the smallest strength."""
    reached = values(curve, weight)
    return max(range(len(curve)), key=lambda i: (reached[i], -abs(curve[i]["tau"])))


def as_trained(tail: Tail, arm: str, seed: int, weight: float) -> int:
    """Use the model as it was trained."""
    return plain(tail.curve("test", arm, seed) or [])


def as_fitted(tail: Tail, arm: str, seed: int, weight: float) -> int:
    """Use the strength that is best on the run's own validation data."""
    return highest(tail.curve("val", arm, seed) or [], weight)


def at_best(tail: Tail, arm: str, seed: int, weight: float) -> int:
    """Use the strength that is best on the test data, which a user would have to know."""
    return highest(tail.curve("test", arm, seed) or [], weight)


USES: dict[str, Strength] = {
    "as trained": as_trained,
    "shifted, the strength fitted on validation data": as_fitted,
    "curves, the strength best on test data": at_best,
}
RULES: dict[str, tuple[int, Mapping[str, str]]] = {
    "`auto`": (4, {arm: arm for arm in TRIED}),
    "`auto[share=0.25]`": (4, RACE),
    "`auto[draws=1]`": (1, {arm: arm for arm in TRIED}),
}
"""How often validation people are drawn, and the runs that are compared."""


def tails_of(runs: Runs) -> list[Tail]:
    """Return the tails: a balanced set that has been given a natural mix too is two."""
    names = list(dict.fromkeys(name for name, *_ in runs))
    weighted = [
        name + NATURAL for name in names if any(f"val{NATURAL}" in runs[key] for key in runs if key[0] == name)
    ]
    seeds = {name: tuple(sorted({seed for each, _, seed, _ in runs if each == name})) for name in names}
    return [
        Tail(
            name,
            {k: r for k, r in runs.items() if k[0] == name.removesuffix(NATURAL)},
            seeds[name.removesuffix(NATURAL)],
        )
        for name in (*names, *weighted)
    ]


def print_tables(drawn: Mapping[Any, Record], judged: Runs) -> None:
    """Print what `auto` reaches on test data, for each wish and use of the models, and its calibration."""
    tails = tails_of(judged)
    for wish, weight in WISHES.items():
        for use, strength in USES.items():
            _print_wish(f"{wish}, {use}", tails, weight, strength)
    _print_calibration(tails)
    print(f"\nseeds: {tails[0].seeds}")


def _print_wish(title: str, tails: Sequence[Tail], weight: float, strength: Strength) -> None:
    rows: dict[str, list[str]] = {}
    for tail in tails:
        means = {arm: np.mean([tail.reached(arm, s, weight, strength) for s in tail.seeds]) for arm in JUDGED}
        best = max(means, key=lambda arm: means[arm])
        cells = [f"{means['fedavg']:.3f}"]
        for draws, arms in RULES.values():
            picks = {seed: tail.choose(seed, weight, draws, arms) for seed in tail.seeds}
            reached = np.array([tail.reached(arm, seed, weight, strength) for seed, arm in picks.items()])
            base = np.array([tail.reached("fedavg", seed, weight, strength) for seed in tail.seeds])
            cells += [
                f"{reached.mean():.3f}",
                _interval(100 * (reached - base)),
                _points(reached.mean() - means[best]),
            ]
        rows[tail.name] = [*cells, f"{means[best]:.3f} {best}"]
    heads = [head for rule in RULES for head in (rule, "− FedAvg", "− best")]
    print_table(title, ["FedAvg", *heads, "best of twelve"], rows)


def _print_calibration(tails: Sequence[Tail]) -> None:
    rows = {}
    draws, arms = RULES["`auto`"]
    for tail in tails:
        picks = {seed: tail.choose(seed, 0.0, draws, arms) for seed in tail.seeds}
        errors = [tail.runs[tail.name.removesuffix(NATURAL), arm, seed, 0] for seed, arm in picks.items()]
        base = [tail.runs[tail.name.removesuffix(NATURAL), "fedavg", seed, 0] for seed in tail.seeds]
        rows[tail.name] = [f"{np.mean([r['calibrated'][tail.mix] for r in each]):.3f}" for each in (errors, base)]
    print_table("calibration error after --calibrate, for the mix of the test", ["`auto`", "FedAvg"], rows)


def _interval(points: Any) -> str:
    reach = student.ppf(0.975, len(points) - 1) * points.std(ddof=1) / len(points) ** 0.5
    return f"{points.mean():+.1f} ± {reach:.1f}".replace("-", "−")


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f}".replace("-", "−")
