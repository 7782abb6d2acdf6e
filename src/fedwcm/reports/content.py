"""The content of a report as plain data: made from loaded runs, rendered by `page.py` and `paper.py`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedwcm.experiment.influence import describe_influence
from fedwcm.experiment.run import Run
from fedwcm.metrics.classification import wilson_interval
from fedwcm.reports import text
from fedwcm.reports.comparison_figures import comparison_figures
from fedwcm.reports.figures import Bars, Curves, Figure
from fedwcm.reports.load import MethodRuns, differing
from fedwcm.reports.run_figures import run_figures
from fedwcm.reports.series import milestones
from fedwcm.reports.styles import fixed_styles, styles_of
from fedwcm.reports.sweep import Sweep, sweep_figures, sweep_of
from fedwcm.reports.table import Row, columns_of, rows_of, spread_of
from fedwcm.reports.verdicts import comparison_headline, default_target
from fedwcm.reports.warnings import warnings

ALWAYS_DRAWN = ("accuracy", "test-accuracy")
"""Figures that a reader looks for first."""

MOST_NAMED = 6
"""Series up to which each is named with its value."""


def is_constant(figure: Figure) -> bool:
    """Return whether all curves are level, or all bars of a single category are equal."""
    if figure.key in ALWAYS_DRAWN:
        return False
    if isinstance(figure, Curves):
        values = [[y for y in curve.y if y is not None] for curve in figure.curves]
        return max(map(len, values), default=0) > 1 and all(map(_equal, values))
    if isinstance(figure, Bars) and len(figure.bars) > 1 and len(figure.categories) == 1:
        return _equal([value for bar in figure.bars for value in bar.values if value is not None])
    return False


def constant_note(figures: Sequence[Figure]) -> str:
    """Return a sentence about the figures that are not drawn; empty if there are none."""
    notes = [f"“{figure.title}” ({_values(figure)})" for figure in figures]
    return f"Constant, and so not drawn: {', '.join(notes)}." if notes else ""


def _values(figure: Figure) -> str:
    known = _series(figure)
    unit = f" {figure.y_label}" if isinstance(figure, Curves | Bars) and figure.y_label in UNITS else ""
    lowest, largest = min(known.values()), max(known.values())
    if _equal(list(known.values())):
        return f"{lowest:.4g}{unit}"
    if len(known) > MOST_NAMED:
        return f"{lowest:.4g} to {largest:.4g}{unit}"
    return ", ".join(f"{name} {value:.4g}{unit}" for name, value in known.items())


UNITS = ("MB", "seconds", "degrees")


def _series(figure: Figure) -> dict[str, float]:
    """Return the value of each series that has one."""
    if isinstance(figure, Curves):
        named = [(curve.name, curve.y) for curve in figure.curves]
    else:
        named = [(bar.name, bar.values) for bar in figure.bars] if isinstance(figure, Bars) else []
    return {name: value for name, values in named for value in values[:1] if value is not None}


def _equal(values: Sequence[float]) -> bool:
    return all(math.isclose(value, values[0], rel_tol=1e-6, abs_tol=1e-12) for value in values)


SHOWN = 10
"""Methods that are switched on at first: all if there are no more, otherwise the best."""


@dataclass(frozen=True)
class Table:
    """The results of a comparison: mean and spread, and when each run first reached which accuracy."""

    columns: dict[str, str]
    rows: list[Row]
    milestones: list[list[list[tuple[float, float]]]]
    target: float


@dataclass(frozen=True)
class ClassResult:
    """A class of one run: its training and test samples, its accuracy and the 95 % interval of that."""

    name: str
    trained: int
    tested: int
    accuracy: float
    low: float
    high: float


@dataclass(frozen=True)
class ReportContent:
    """The content of a report.

    Args:
        tiles: label, number and remark of the numbers on top of a single run's page.
        best: the methods that are switched on at first.
        styles: the style of each method: see `fedwcm.reports.styles`.
        costs: the MB and the seconds of a round of each method, where they are known.
        options: the options that all runs share.
        differences: the other options, with one value per method.
        sweep: the effect of the options that a grid varied.
        classes: those of a single run that were tested, the most frequent first.
        commands: what to run next: what for, and the command.
    """

    title: str
    headline: list[str]
    facts: list[str]
    warnings: list[str]
    notes: list[str]
    tiles: list[tuple[str, str, str]]
    methods: list[str]
    best: list[str]
    styles: dict[str, int]
    costs: dict[str, dict[str, float]]
    table: Table | None
    figures: list[Figure]
    options: dict[str, str]
    differences: dict[str, list[str]]
    sweep: Sweep | None = None
    classes: Sequence[ClassResult] = ()
    commands: Sequence[tuple[str, str]] = ()


def report_content(groups: Sequence[MethodRuns], limit: int, target: float | None = None) -> ReportContent:
    """Return the report of one run, or of several; curves have at most `limit` points."""
    runs = [run for group in groups for run in group.runs]
    keys = differing(groups)
    settings = runs[0].settings
    alone, best = len(runs) == 1, _best(groups)
    figures = (
        run_figures(runs[0], limit) if alone else [*sweep_figures(groups), *comparison_figures(groups, limit)]
    )
    return ReportContent(
        title=text.run_title(runs[0]) if alone else text.comparison_title(groups),
        headline=[" ".join(text.run_headline(runs[0]))] if alone else comparison_headline(groups),
        facts=[*(text.run_setup(runs[0]) if alone else text.comparison_setup(groups)), *text.privacy(groups)],
        warnings=warnings(groups),
        notes=[
            *_notes(groups, limit),
            *_influence(runs),
            *filter(None, [constant_note([f for f in figures if is_constant(f)])]),
        ],
        tiles=text.tiles(runs[0]) if alone else [],
        methods=[group.label for group in groups],
        best=best,
        styles=_styles(groups, best),
        costs={group.label: _costs(group) for group in groups},
        table=None if alone else _table(groups, target),
        figures=[figure for figure in figures if not is_constant(figure)],
        options=({} if runs[0].environment is None else runs[0].environment.describe())
        | {
            key: str(value)
            for key, value in sorted(settings.items())
            if key not in keys and (alone or key not in ("run.seed", "run.name"))
        },
        differences={key: [str(group.settings.get(key, "–")) for group in groups] for key in keys},
        sweep=None if alone else sweep_of(groups),
        classes=_classes(runs[0]) if alone else (),
    )


def _classes(run: Run) -> list[ClassResult]:
    if run.summary is None or run.summary.confusion is None:
        return []
    confusion = np.array(run.summary.confusion)
    hits, tested = np.diag(confusion), confusion.sum(axis=1)
    intervals = wilson_interval(hits, tested)
    return [
        ClassResult(
            name=run.classes[c],
            trained=run.train_counts[c],
            tested=int(tested[c]),
            accuracy=float(hits[c] / tested[c]),
            low=float(intervals[c][0]),
            high=float(intervals[c][1]),
        )
        for c in sorted(range(len(tested)), key=lambda c: -run.train_counts[c])
        if tested[c]
    ]


def _influence(runs: Sequence[Run]) -> list[str]:
    """Say who was left out of a single run, and what bounded each client."""
    return describe_influence(runs[0].history, runs[0].settings) if len(runs) == 1 else []


def _notes(groups: Sequence[MethodRuns], limit: int) -> list[str]:
    """Say how to read the figures, and what the page leaves out."""
    longest = max(len(run.history) for group in groups for run in group.runs)
    notes = []
    if any(len(group.runs) > 1 for group in groups):
        notes.append("Lines and bars are means over the seeds, bands and whiskers one standard deviation.")
    if longest > limit:
        notes.append(
            f"Curves are thinned to {limit} of {longest} evaluated rounds; all are in the runs' metrics.jsonl."
        )
    if len({group.runs[0].classes for group in groups}) > 1:
        notes.append("The runs have different classes: figures by class are left out.")
    if len(groups) > SHOWN:
        notes.append(f"The {SHOWN} best of {len(groups)} are switched on; the others can be.")
    return notes + text.unbalanced_test_set(groups)


def _table(groups: Sequence[MethodRuns], target: float | None) -> Table:
    rows = rows_of(groups)
    return Table(
        columns=columns_of(rows),
        rows=rows,
        milestones=[[milestones(run) for run in group.runs] for group in groups],
        target=default_target(groups) if target is None else target,
    )


def _styles(groups: Sequence[MethodRuns], best: Sequence[str]) -> dict[str, int]:
    """Choose styles: a method of the package has the same everywhere, and settings in a grid share a colour."""
    if any(group.swept for group in groups):
        series = {group.label: (group.method, str(group.swept)) for group in groups}
        styles = styles_of(list(series.values()))
        return {label: styles[one] for label, one in series.items()}
    return fixed_styles([*best, *(group.label for group in groups if group.label not in best)])


def _costs(group: MethodRuns) -> dict[str, float]:
    spreads = {"MB": spread_of(group, "megabytes_per_round"), "seconds": spread_of(group, "seconds_per_round")}
    return {unit: cost.mean for unit, cost in spreads.items() if cost is not None}


def _best(groups: Sequence[MethodRuns]) -> list[str]:
    """Return the methods with the highest accuracy, in the order of the page."""

    def best_accuracy(group: MethodRuns) -> float:
        return max((run.outcome.accuracy or 0.0 for run in group.counted), default=0.0)

    best = sorted(groups, key=best_accuracy, reverse=True)[:SHOWN]
    return [group.label for group in groups if group in best]
