"""The results of a comparison: one row per method and setting, ranked within its task."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from fedwcm.core.types import Ints
from fedwcm.experiment.run import Run
from fedwcm.reports.load import MethodRuns, differing
from fedwcm.reports.series import megabytes, seconds_per_round
from fedwcm.reports.statistics import (
    FEW_SEEDS,
    MARGIN,
    MOST_SEEDS,
    Difference,
    Spread,
    bootstrap_interval,
    differences,
    spread_if_any,
)

COLUMNS = {
    "selected_accuracy": "selected",
    "final_accuracy": "final",
    "balanced_accuracy": "balanced",
    "few": "few",
    "medium": "medium",
    "many": "many",
    "macro_f1": "macro F1",
    "client_mean": "clients",
    "client_worst_decile": "worst decile",
    "client_std": "std of clients",
    "personalized": "fine-tuned",
    "personalization_gain": "gain of fine-tuning",
    "best_accuracy": "best",
    "last_mean_accuracy": "last 10 evaluations",
    "val_accuracy": "validation",
    "train_set_accuracy": "training set",
    "seconds_per_round": "s/round",
    "megabytes_per_round": "MB/round",
    "seconds": "s in all",
    "megabytes": "MB in all",
}
OWN = "metrics."
"""Prefix of the columns of `run.metrics`. Which of two numbers is better is not known there, so none is marked."""

FIRST = {
    "balanced_accuracy": "balanced accuracy",
    "selected_accuracy": "test accuracy",
    "final_accuracy": "test accuracy",
}
"""The metrics by which rows may be ranked, with their names in a sentence."""

COSTS = ("seconds_per_round", "megabytes_per_round", "seconds", "megabytes")
"""What a run takes, beside what it reaches."""

LOWER_IS_BETTER = (*COSTS, "client_std")

TASK_SECTIONS = ("data", "partition")
"""Sections whose options make another task: results on different tasks are not ranked against each other."""


@dataclass(frozen=True)
class Row:
    """The runs of one method and setting.

    Args:
        method: the label without the swept options, which are in `options`.
        position: of the method in the order of the comparison.
        runs: how many there are; the numbers are of those that have finished or, if none has, of all so far.
        task: the options of the data and their division that set this row apart; empty if all rows share them.
        best: the columns in which the row is the best of its task, or equivalent to the best.
        verdict: how the row compares with the best of its task.
        ranked_by: the column that ranks the rows of the task.
    """

    label: str
    method: str
    options: dict[str, str]
    position: int
    task: str
    runs: int
    finished: int
    diverged: int
    values: dict[str, Spread | None]
    best: frozenset[str]
    verdict: str
    ranked_by: str


@dataclass(frozen=True)
class Task:
    """Methods on the same data, divided in the same way."""

    name: str
    groups: tuple[MethodRuns, ...]

    @property
    def evaluated(self) -> list[Run]:
        """The runs that count and were evaluated: one that diverged before that says nothing of its data."""
        runs = [run for group in self.groups for run in group.counted]
        return [run for run in runs if run.outcome.number("final_accuracy") is not None]

    @property
    def first(self) -> str:
        """The metric by which methods are ranked.

        That is the balanced accuracy if frequent classes dominate the test data, unless runs select by `accuracy`;
        else the selected accuracy if all have validation data.
        """
        balanced, selected, final = FIRST
        runs = self.evaluated
        unbalanced = any(run.summary is not None and run.summary.has_unbalanced_test_set for run in runs)
        if unbalanced and all(run.select_by == balanced for run in runs):
            return balanced
        return selected if self.is_selected else final

    @property
    def is_selected(self) -> bool:
        """Whether the model of every run is that of the round that validation data select."""
        measured = [run.outcome.selected_accuracy is not None for run in self.evaluated]
        return bool(measured) and all(measured)

    def pairs(self, column: str | None = None) -> list[Difference]:
        """Compare the methods with each other, over finished runs; none with a diverged run takes part."""
        column = column or self.first
        values: dict[str, dict[Hashable, float]] = {}
        for group in self.groups:
            numbers = {str(run.seed): number_of(run, column) for run in group.counted if run.finished}
            known: dict[Hashable, float] = {seed: value for seed, value in numbers.items() if value is not None}
            if known and not group.diverged:
                values[group.label] = known
        margin = 0.0 if column in COSTS else MARGIN
        return differences(values, lower_is_better=column in LOWER_IS_BETTER, margin=margin)

    def against_best(self, column: str | None = None) -> list[Difference]:
        """Return the pairs of the best method, its nearest rival first."""
        pairs = self.pairs(column)
        return [pair for pair in pairs if pair.method == pairs[0].method]

    def row_interval(self, pair: Difference) -> tuple[float, float] | None:
        """Return the interval of the lead of one method's models over the other's that the test rows leave open.

        Rows are resampled, trained models are not: a second source of evidence, about these models only. A row
        counts by its mean over the seeds that both methods have. None without rows that were kept, or with test
        sets of unequal size.
        """
        hits = [self._row_hits(method) for method in (pair.method, pair.other)]
        shared = sorted(set.intersection(*map(set, hits)))
        leads = [hits[0][seed] - hits[1][seed] for seed in shared if hits[0][seed].shape == hits[1][seed].shape]
        if not leads or len({len(lead) for lead in leads}) > 1 or len(leads) < len(shared):
            return None
        return bootstrap_interval(np.mean(leads, axis=0))

    def _row_hits(self, method: str) -> dict[str, Ints]:
        kept: dict[str, Ints] = {}
        for run in (run for group in self.groups if group.label == method for run in group.counted):
            hits = None if run.summary is None else run.summary.row_hits
            accuracy = number_of(run, self.first)
            # Of the model that is compared: a run may have kept another one than that of its last round.
            if hits is not None and accuracy is not None and len(hits) and abs(hits.mean() - accuracy) < 1e-6:
                kept[str(run.seed)] = hits
        return kept


def columns_of(rows: Sequence[Row]) -> dict[str, str]:
    """Return the columns in which any row has a number, with headings; first what ranks the rows.

    The balanced accuracy is among them where it ranks, or says more than the accuracy.
    """
    ranked_by = {row.ranked_by: COLUMNS[row.ranked_by] for row in rows}
    known = {key: COLUMNS.get(key, key.removeprefix(OWN)) for row in rows[:1] for key in row.values}
    used = {key: name for key, name in (ranked_by | known).items() if any(row.values[key] for row in rows)}
    both = [(row.values["balanced_accuracy"], row.values["final_accuracy"]) for row in rows]
    says_more = any(one and other and abs(one.mean - other.mean) >= MARGIN / 2 for one, other in both)
    if not says_more and "balanced_accuracy" not in ranked_by:
        used.pop("balanced_accuracy", None)
    return used


def marks_meaning(rows: Sequence[Row]) -> str:
    """Return what is marked in a table, as a sentence, and what is missing for more."""
    fewest, most = min(row.finished for row in rows), max(row.finished for row in rows)
    if most < FEW_SEEDS:
        seeds = "one seed says nothing" if most == 1 else f"{most} seeds say little"
        return f"only the highest of each column: {seeds} of the others. More: --seeds 0-{FEW_SEEDS - 1}."
    less = f"; rows of fewer than {FEW_SEEDS} seeds rank behind" if fewest < FEW_SEEDS else ""
    return f"the highest of each column, and what is equivalent to it within {MARGIN}{less}."


def tasks_of(groups: Sequence[MethodRuns]) -> list[Task]:
    """Return the groups by task, in the order of their first group."""
    keys = [key for key in differing(groups) if makes_task(key)]
    sources = {(group.settings.get("data.dataset"), group.runs[0].data_digest) for group in groups}
    changed = len(sources) > len({dataset for dataset, _ in sources})
    members: dict[str, list[MethodRuns]] = {}
    for group in groups:
        marks = [f"{key}={group.settings.get(key, 'none')}" for key in keys]
        marks += [f"data {group.runs[0].data_digest[:8]}"] if changed else []
        members.setdefault(", ".join(marks), []).append(group)
    return [Task(name, tuple(inside)) for name, inside in members.items()]


def rows_of(groups: Sequence[MethodRuns]) -> list[Row]:
    """Return the rows of a table: task by task, the best first, methods with a diverged run last."""
    positions, swept = {group.label: number for number, group in enumerate(groups)}, swept_keys(groups)
    outcomes = [run.outcome for group in groups for run in group.counted]
    columns = dict.fromkeys([*COLUMNS, *(OWN + key for outcome in outcomes for key in outcome.metrics or ())])
    return [row for task in tasks_of(groups) for row in _rank_rows(task, positions, swept, list(columns))]


def _rank_rows(task: Task, positions: dict[str, int], swept: Sequence[str], columns: Sequence[str]) -> list[Row]:
    marked = {column: set() if column.startswith(OWN) else _mark(task, column) for column in columns}
    verdicts = verdicts_of(task)
    most = max(len(group.counted) for group in task.groups)
    enough = FEW_SEEDS if most >= FEW_SEEDS else min(2, most)
    rows = [
        Row(
            label=group.label,
            method=group.method,
            options=group.values_of(swept),
            position=positions[group.label],
            task=task.name,
            runs=len(group.runs),
            finished=sum(run.finished for run in group.runs),
            diverged=group.diverged,
            values={column: spread_of(group, column) for column in columns},
            best=frozenset(column for column in columns if group.label in marked[column]),
            verdict=verdicts[group.label],
            ranked_by=task.first,
        )
        for group in task.groups
    ]
    return sorted(rows, key=lambda row: _rank(row, task.first, enough))


def _rank(row: Row, column: str, enough: int) -> tuple[bool, bool, float]:
    """Put rows with too few seeds to be judged beside the others behind them, diverged ones last."""
    value = row.values[column]
    return row.diverged > 0, value is None or value.runs < enough, float("inf") if value is None else -value.mean


def chosen_options(group: MethodRuns) -> str:
    """Return the swept options that a user may choose, as text: those that do not make another task."""
    return ", ".join(f"{key}={value}" for key, value in group.swept.items() if not makes_task(key))


def makes_task(key: str) -> bool:
    """Return whether runs that differ in this option are not ranked against each other."""
    return key.split(".")[0] in TASK_SECTIONS


def swept_keys(groups: Sequence[MethodRuns]) -> list[str]:
    """Return the options that the grid of any of the comparisons varied."""
    return list(dict.fromkeys(key for group in groups for key in group.swept))


def number_of(run: Run, column: str) -> float | None:
    """Return the number of a run in a column of the table."""
    if column in ("seconds", "megabytes"):
        rate = number_of(run, f"{column}_per_round")
        return None if rate is None else rate * run.outcome.rounds
    if column == "megabytes_per_round":
        return megabytes(run)
    if column == "personalized":
        return None if run.personalized is None else run.personalized.after.get("client_mean")
    if column == "personalization_gain":
        return None if run.personalized is None else run.personalized.gain
    return seconds_per_round(run) if column == "seconds_per_round" else run.outcome.number(*column.split(".", 1))


def verdicts_of(task: Task) -> dict[str, str]:
    """Say how each method compares with the best of its task."""
    marks = {group.label: "diverged" if group.diverged else "–" for group in task.groups}
    against = task.against_best()
    if against:
        sure = all(pair.verdict in ("better", "equivalent") for pair in against)
        marks[against[0].method] = "best" if sure else "highest"
        marks |= {pair.other: _against(pair) for pair in against}
    return marks


def _against(pair: Difference) -> str:
    """Say how the second of a pair compares with the first."""
    if pair.test is None:
        return "no verdict: one seed" if pair.seeds else "no verdict: no shared seed"
    size = f"{abs(pair.test.mean):.3f}"
    if pair.verdict == "better":
        return f"worse by {size}, {_p(pair)}"
    if pair.verdict == "worse":
        return f"better by {size} on the {pair.seeds} shared seeds, {_p(pair)}"
    if pair.verdict == "equivalent":
        return f"equivalent within {pair.margin}"
    low, high = pair.interval
    interval = f"{sign(-pair.test.mean)} ({sign(-high)} to {sign(-low)})"
    return f"undecided: {interval}; {pair.seeds} seeds, {needed_text(pair.seeds_needed)} needed"


def _p(pair: Difference) -> str:
    assert pair.corrected is not None
    return "p < 0.001" if pair.corrected < 0.001 else f"p {pair.corrected:.2g}"


def needed_text(seeds: int | None) -> str:
    """Say how many seeds a verdict needs."""
    return f"more than {MOST_SEEDS:,}" if seeds is None else f"about {seeds}"


def sign(value: float) -> str:
    """Return three digits after the point, with a sign."""
    return f"{value:+.3f}".replace("-", "−")


def _mark(task: Task, column: str) -> set[str]:
    """Return the best method in a column and, from `FEW_SEEDS` on, its equals; none of a single method."""
    if column.startswith("seconds") and any(run.shared_machine for group in task.groups for run in group.runs):
        return set()  # runs at the same time slow each other down
    against = task.against_best(column)
    means = {group.label: value.mean for group in task.groups if (value := spread_of(group, column)) is not None}
    if not against or len(set(means.values())) == 1:
        return set()
    best = against[0].method
    equal = {pair.other for pair in against if means[pair.other] == means[best]}
    near = {pair.other for pair in against if pair.seeds >= FEW_SEEDS and pair.verdict == "equivalent"}
    return {best} | equal | near


def spread_of(group: MethodRuns, column: str) -> Spread | None:
    """Return mean and spread of a column over the runs that count; None if none has it."""
    return spread_if_any(number_of(run, column) for run in group.counted)
