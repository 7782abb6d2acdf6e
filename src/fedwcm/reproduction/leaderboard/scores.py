"""The numbers of the leaderboard: means, paired intervals with seeds as units, ranks and their correlations."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata, spearmanr

from fedwcm.reports.statistics import PairedTest, paired_test
from fedwcm.reproduction.leaderboard.measure import Entry, Record

MEASURES = {
    "balanced": "balanced accuracy",
    "shifted balanced": "balanced accuracy, shifted",
    "rare": "accuracy of rare classes",
    "shifted rare": "accuracy of rare classes, shifted",
    "accuracy": "accuracy",
    "shifted accuracy": "accuracy, shifted",
    "ece": "calibration error",
}
"""What is shown: of the model as trained, and with t · log p added to its logits, t fitted on validation data."""

LOWER_IS_BETTER = ("ece",)
CURVE_KEYS = {"balanced": "balanced_accuracy", "rare": "few", "accuracy": "test_accuracy"}


@dataclass(frozen=True)
class Score:
    """A row on a task: numbers by measure and seed; empty where nothing was judged yet."""

    task: str
    row: str
    wanted: int
    values: Mapping[str, Mapping[int, float]]
    setting: Mapping[str, object] | None
    curve: Mapping[str, Sequence[float]]
    problem: str

    @property
    def complete(self) -> bool:
        """Whether every seed has a number."""
        return len(self.values["balanced"]) == self.wanted

    def mean(self, measure: str) -> float | None:
        """Return the mean over the seeds; None where one is missing or diverged."""
        values = list(self.values[measure].values())
        return float(np.mean(values)) if self.complete and len(values) == self.wanted else None


def score(entry: Entry) -> Score:
    """Return the numbers of a row on a task."""
    records = entry.results()
    judged = {seed: record for seed, record in records.items() if "balanced" in record}
    pairs = {seed: _values(record) for seed, record in judged.items()}
    values = {
        measure: {seed: number for seed, row in pairs.items() if (number := row[measure]) is not None}
        for measure in MEASURES
    }
    problems = [
        str(record.get("diverged") or record["refused"]) for record in records.values() if "balanced" not in record
    ]
    problem = f"{len(problems)} of {len(records)} runs: {problems[0]}" if problems else ""
    curve = _mean_curve(list(judged.values()))
    return Score(entry.task, entry.row.name, len(entry.plan.seeds), values, entry.chosen_setting(), curve, problem)


def against(score: Score, baseline: Score, measure: str) -> PairedTest | None:
    """Return the paired test of a row against the baseline on one task, with the seeds as units."""
    own, other = score.values[measure], baseline.values[measure]
    return paired_test([own[seed] - other[seed] for seed in sorted(own.keys() & other.keys())])


def ranks(scores: Iterable[Score], measure: str) -> dict[str, float]:
    """Return the place of every complete row on a task, 1 the best, equals sharing theirs."""
    sign = 1.0 if measure in LOWER_IS_BETTER else -1.0
    means = {s.row: sign * mean for s in scores if (mean := s.mean(measure)) is not None}
    return dict(zip(means, rankdata([*means.values()]).tolist(), strict=True))


def correlation(first: Mapping[str, float], second: Mapping[str, float]) -> tuple[float, int] | None:
    """Return Spearman's correlation of two rankings over the rows of both, and their number; None for under 3."""
    shared = sorted(first.keys() & second.keys())
    if len(shared) < 3:
        return None
    places = [[ranking[row] for row in shared] for ranking in (first, second)]
    if any(len(set(each)) == 1 for each in places):
        return None
    return float(spearmanr(*places).statistic), len(shared)


def _values(record: Record) -> dict[str, float | None]:
    curve, plain = record["curve"], {key: record[key] for key in ("accuracy", "balanced", "rare", "ece")}
    if not curve or record["strength"] is None:
        return {**plain, **{f"shifted {key}": None for key in CURVE_KEYS}}
    at = curve["strength"].index(record["strength"])
    return {**plain, **{f"shifted {key}": curve[column][at] for key, column in CURVE_KEYS.items()}}


def _mean_curve(records: Sequence[Record]) -> dict[str, list[float]]:
    """Return the mean trade-off curve over the seeds, at the strengths that all of them have."""
    curves = [record["curve"] for record in records if record["curve"]]
    if not curves:
        return {}
    strengths = sorted(set.intersection(*(set(curve["strength"]) for curve in curves)))
    columns = {"strength": strengths}
    for key in ("test_accuracy", "balanced_accuracy"):
        rows = [[curve[key][curve["strength"].index(t)] for t in strengths] for curve in curves]
        columns[key] = np.mean(rows, axis=0).round(4).tolist()
    return columns
