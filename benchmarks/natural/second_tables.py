"""The tables of the second judgement: `auto` beside FedAvg and beside the best of all arms, tail by tail."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.natural.arms import JUDGED, RACE, TRIED
from benchmarks.natural.tables import NATURAL, Curve, interval, print_table

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

    def picks(self, rule: str, weight: float) -> dict[int, str]:
        """Return the arm that a rule takes with each seed."""
        return {seed: self.choose(seed, weight, *RULES[rule]) for seed in self.seeds}

    def reached_by(self, arms: Mapping[int, str], weight: float, strength: "Strength") -> NDArray[np.float64]:
        """Return what the arms of the seeds reach."""
        return np.array([self.reached(arm, seed, weight, strength) for seed, arm in arms.items()])

    def best(self, weight: float, strength: "Strength") -> tuple[str, float]:
        """Return the arm with the highest mean, and that."""
        means = {
            arm: float(self.reached_by(dict.fromkeys(self.seeds, arm), weight, strength).mean()) for arm in JUDGED
        }
        best = max(means, key=means.__getitem__)
        return best, means[best]

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


RULES: dict[str, tuple[int, Mapping[str, str]]] = {
    "`auto`": (1, {arm: arm for arm in TRIED}),
    "`auto[draws=4]`": (4, {arm: arm for arm in TRIED}),
    "`auto[draws=4, share=0.25]`": (4, RACE),
}
"""How often validation people are drawn, and the runs that are compared."""

ARMS_OF_RULES: tuple[Mapping[str, str], ...] = (RULES["`auto`"][1], RACE)


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


def print_tables(drawn: Runs, judged: Runs) -> None:
    """Print how the rule was chosen; what `auto` reaches on test data, for each wish and use; its calibration."""
    _print_rules(drawn)
    tails = tails_of(judged)
    balanced = [tail for tail in tails if not tail.name.endswith(NATURAL)]  # the weighted ones have the same
    _print_wish("balanced accuracy, as trained", balanced, 0.0, as_trained)
    _print_wish("balanced accuracy, shifted, the strength fitted on validation data", balanced, 0.0, as_fitted)
    _print_wish("accuracy, shifted, the strength fitted on validation data", tails, 1.0, as_fitted)
    _print_curves(tails)
    _print_calibration(tails)
    print(f"\nseeds: {tails[0].seeds}")


def _print_rules(drawn: Runs) -> None:
    """Print the balanced accuracy on validation people who had no say: seeds are draws, each left out once."""
    rows = {}
    for name in dict.fromkeys(name for name, *_ in drawn):
        seeds = sorted({seed for each, _, seed, _ in drawn if each == name})
        runs = {(arm, seed): run for (each, arm, seed, _), run in drawn.items() if each == name and "val" in run}
        whole = [seed for seed in seeds if all((arm, seed) in runs for arm in (*TRIED, *RACE.values()))]
        rows[name] = [_rule_value(runs, whole, draws, arms) for arms in ARMS_OF_RULES for draws in (1, 4)]
    heads = [
        f"{draws}, {rounds}" for rounds in ("all rounds", "a quarter") for draws in ("one draw", "four draws")
    ]
    print_table("balanced accuracy, as trained, on people who chose nothing", heads, rows)


def _rule_value(runs: Mapping[Any, Record], seeds: Sequence[int], draws: int, arms: Mapping[str, str]) -> str:
    def value(arm: str, seed: int) -> float:
        curve = runs[arm, seed]["val"]
        return float(curve[plain(curve)]["balanced"])

    reached = []
    for last in seeds:
        others = [seed for seed in seeds if seed != last]
        for start in range(0, len(others) - draws + 1, draws):
            group = others[start : start + draws]
            means = {arm: np.mean([value(arms[arm], seed) for seed in group]) for arm in arms}
            best = max(means, key=means.__getitem__)
            reached.append(value(best, last))
    return f"{np.mean(reached):.3f}"


def _print_wish(title: str, tails: Sequence[Tail], weight: float, strength: Strength) -> None:
    rows: dict[str, list[str]] = {}
    for tail in tails:
        base = tail.reached_by(dict.fromkeys(tail.seeds, "fedavg"), weight, strength)
        reached = [tail.reached_by(tail.picks(rule, weight), weight, strength) for rule in RULES]
        best, highest_mean = tail.best(weight, strength)
        cells = [f"{base.mean():.3f}", f"{reached[0].mean():.3f}", interval(100 * (reached[0] - base))]
        others = [f"{values.mean():.3f}" for values in reached[1:]]
        rows[tail.name] = [
            *cells,
            _points(reached[0].mean() - highest_mean),
            *others,
            f"{highest_mean:.3f} {best}",
        ]
    first, *more = RULES
    print_table(title, ["FedAvg", first, "− FedAvg", "− best", *more, "best of twelve"], rows)


def _print_curves(tails: Sequence[Tail]) -> None:
    """Print how the curve of each rule lies: a choice for each wish, at the strength that is best on test data."""
    rows = {}
    for tail in tails:
        cells = []
        for rule in RULES:
            gaps = []
            for weight in WISHES.values():
                reached = tail.reached_by(tail.picks(rule, weight), weight, at_best).mean()
                base = tail.reached_by(dict.fromkeys(tail.seeds, "fedavg"), weight, at_best).mean()
                gaps.append((reached - base, reached - tail.best(weight, at_best)[1]))
            cells += ["/".join(map(_points, column)) for column in zip(*gaps, strict=True)]
        rows[tail.name] = cells
    heads = [head for rule in RULES for head in (f"{rule} − FedAvg", "− best")]
    print_table(f"curves, in points: {', '.join(WISHES)}", heads, rows)


def _print_calibration(tails: Sequence[Tail]) -> None:
    rows = {}
    for tail in tails:
        picks = tail.picks("`auto`", 0.0)
        errors = [tail.runs[tail.name.removesuffix(NATURAL), arm, seed, 0] for seed, arm in picks.items()]
        base = [tail.runs[tail.name.removesuffix(NATURAL), "fedavg", seed, 0] for seed in tail.seeds]
        rows[tail.name] = [f"{np.mean([r['calibrated'][tail.mix] for r in each]):.3f}" for each in (errors, base)]
    print_table("calibration error after --calibrate, for the mix of the test", ["`auto`", "FedAvg"], rows)


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f}".replace("-", "−")
