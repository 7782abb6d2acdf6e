"""The results of a comparison: one row per method and setting, ranked within its task."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from fedwcm.config.schema import COMPONENTS
from fedwcm.config.settings import RESULT_NEUTRAL
from fedwcm.reports.load import LoadedRun, MethodRuns, differing
from fedwcm.reports.series import megabytes, seconds_per_round
from fedwcm.reports.statistics import Difference, Spread, differences, spread

COLUMNS = {
    "selected_accuracy": "selected",
    "final_accuracy": "final",
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
}
FIRST = ("selected_accuracy", "final_accuracy")
"""The metrics by which rows are ranked: the first that all have."""

COSTS = ("seconds_per_round", "megabytes_per_round")
"""What a run takes, beside what it reaches."""

LOWER_IS_BETTER = (*COSTS, "client_std")

NOT_APPLICABLE = "–"
"""Stands for the value of an option that another comparison's grid varied and this group does not have."""

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
        best: the columns in which the row is the best of its task, or not distinguishable from the best.
        verdict: how the row compares with the best of its task.
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


@dataclass(frozen=True)
class Task:
    """Methods on the same data, divided in the same way."""

    name: str
    groups: tuple[MethodRuns, ...]

    @property
    def evaluated(self) -> list[LoadedRun]:
        """The runs that count and were evaluated: one that diverged before that says nothing of its data."""
        runs = [run for group in self.groups for run in group.counted]
        return [run for run in runs if run.outcome.number("final_accuracy") is not None]

    @property
    def first(self) -> str:
        """The metric by which methods are ranked: the selected accuracy if all have validation data."""
        selected, final = FIRST
        found = [run.outcome.number(selected) is not None for run in self.evaluated]
        return selected if found and all(found) else final


def columns_of(rows: Sequence[Row]) -> dict[str, str]:
    """The columns in which any row has a number, with their headings."""
    return {key: name for key, name in COLUMNS.items() if any(row.values[key] for row in rows)}


def tasks_of(groups: Sequence[MethodRuns]) -> list[Task]:
    """The groups by task, in the order of their first group."""
    keys = [key for key in differing(groups) if key.split(".")[0] in TASK_SECTIONS]
    sources = {(group.settings.get("data.dataset"), group.runs[0].data_digest) for group in groups}
    changed = len(sources) > len({dataset for dataset, _ in sources})
    members: dict[str, list[MethodRuns]] = {}
    for group in groups:
        marks = [f"{key}={group.settings.get(key, 'none')}" for key in keys]
        marks += [f"data {group.runs[0].data_digest[:8]}"] if changed else []
        members.setdefault(", ".join(marks), []).append(group)
    return [Task(name, tuple(inside)) for name, inside in members.items()]


def rows_of(groups: Sequence[MethodRuns]) -> list[Row]:
    """The rows of a table: task by task, the best accuracy first, methods with a diverged run last."""
    positions, swept = {group.label: number for number, group in enumerate(groups)}, swept_keys(groups)
    return [row for task in tasks_of(groups) for row in _ranked(task, positions, swept)]


def _ranked(task: Task, positions: dict[str, int], swept: Sequence[str]) -> list[Row]:
    tied = {column: _tied(task, column) for column in COLUMNS}
    verdicts = verdicts_of(task)
    rows = [
        Row(
            label=group.label,
            method=method_name(group),
            options=values_of(group, swept),
            position=positions[group.label],
            task=task.name,
            runs=len(group.runs),
            finished=sum(run.finished for run in group.runs),
            diverged=group.diverged,
            values={column: spread_of(group, column) for column in COLUMNS},
            best=frozenset(column for column in COLUMNS if group.label in tied[column]),
            verdict=verdicts[group.label],
        )
        for group in task.groups
    ]
    return sorted(rows, key=lambda row: _rank(row, task.first))


def _rank(row: Row, column: str) -> tuple[bool, float]:
    value = row.values[column]
    return row.diverged > 0, float("inf") if value is None else -value.mean


def method_name(group: MethodRuns) -> str:
    """The name of the method as it was typed, without swept options."""
    return str(group.settings.get("run.name", group.label)) if swept_options(group) else group.label


def swept_options(group: MethodRuns) -> dict[str, str]:
    """The values of the options that the comparison's grid varied."""
    return {key: str(group.settings.get(key, "none")) for key in group.runs[0].swept if key not in RESULT_NEUTRAL}


def swept_keys(groups: Sequence[MethodRuns]) -> list[str]:
    """The options that the grid of any of the comparisons varied."""
    return list(dict.fromkeys(key for group in groups for key in swept_options(group)))


def values_of(group: MethodRuns, keys: Sequence[str]) -> dict[str, str]:
    """The values of these options; `NOT_APPLICABLE` for one that the group does not have."""
    own = {key: str(value) for key, value in group.settings.items()} | swept_options(group)
    return {key: own.get(key, NOT_APPLICABLE if key.split(".")[0] in COMPONENTS else "none") for key in keys}


def number_of(run: LoadedRun, column: str) -> float | None:
    """The number of a run in a column of the table."""
    if column == "megabytes_per_round":
        return megabytes(run)
    if column == "personalized":
        return None if run.personalized is None else run.personalized.after.get("client_mean")
    if column == "personalization_gain":
        return None if run.personalized is None else run.personalized.gain
    return seconds_per_round(run) if column == "seconds_per_round" else run.outcome.number(column)


def pairs(task: Task, column: str | None = None) -> list[Difference]:
    """The methods of a task compared with each other, over finished runs; none with a diverged run takes part."""
    column = column or task.first
    values: dict[str, dict[Hashable, float]] = {}
    for group in task.groups:
        numbers = {str(run.seed): number_of(run, column) for run in group.counted if run.finished}
        known: dict[Hashable, float] = {seed: value for seed, value in numbers.items() if value is not None}
        if known and not group.diverged:
            values[group.label] = known
    return differences(values, lower_is_better=column in LOWER_IS_BETTER)


def verdicts_of(task: Task) -> dict[str, str]:
    """How each method compares with the best of its task."""
    said = {group.label: "diverged" if group.diverged else "–" for group in task.groups}
    found = pairs(task)
    if found:
        best = found[0].method
        against = [pair for pair in found if pair.method == best]
        said[best] = "best" if found[0].test and not any(pair.reversed for pair in against) else "highest"
        said |= {pair.other: _verdict(pair) for pair in against}
    return said


def _verdict(pair: Difference) -> str:
    if pair.test is None or pair.corrected is None:
        return "no verdict: one seed" if pair.seeds else "no verdict: no shared seed"
    if pair.distinguishable:
        return f"worse by {pair.test.mean:.3f}, p {pair.corrected:.2g}"
    if pair.reversed:
        return f"better by {-pair.test.mean:.3f} on the {pair.seeds} shared seeds, p {pair.corrected:.2g}"
    return f"not distinguishable with {pair.seeds} seeds"


def _tied(task: Task, column: str) -> set[str]:
    """The methods that are the best in a column, as far as their seeds can tell; none of a single method."""
    if column == "seconds_per_round" and any(run.shared_machine for group in task.groups for run in group.runs):
        return set()  # runs at the same time slow each other down
    found = pairs(task, column)
    if not found:
        return set()
    means = {group.label: value.mean for group in task.groups if (value := spread_of(group, column)) is not None}
    if len(set(means.values())) == 1:
        return set()
    best = found[0].method
    others = [pair for pair in found if pair.method == best]
    exact = {pair.other for pair in others if pair.test is None or column == "megabytes_per_round"}
    equal = {other for other in exact if means[other] == means[best]}
    return {best} | equal | {pair.other for pair in others if pair.other not in exact and not pair.distinguishable}


def spread_of(group: MethodRuns, column: str) -> Spread | None:
    """Mean and spread of a column over the runs that count; None if none has it."""
    values = [value for run in group.counted if (value := number_of(run, column)) is not None]
    return spread(values) if values else None
