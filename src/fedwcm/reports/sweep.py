"""A grid over options as a view of its own: accuracy over each option, pivots, the best setting of each method."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedwcm.config.schema import SelectBy
from fedwcm.experiment.records import VALIDATION_METRICS
from fedwcm.reports.figures import Bar, Bars, Curve, Curves
from fedwcm.reports.load import NOT_APPLICABLE, MethodRuns
from fedwcm.reports.statistics import Spread
from fedwcm.reports.styles import styles_of
from fedwcm.reports.table import FIRST, Task, chosen_options, makes_task, spread_of, swept_keys, tasks_of
from fedwcm.utils.json_record import is_number

LOG_RATIO = 8.0
"""Largest over smallest value of an option from which its axis is logarithmic."""

ON_VALIDATION = "The best setting of each method is the one with the highest {metric} on the validation data."
ON_TEST = (
    "There is no validation data: the best setting of each method was chosen on the test data, which flatters "
    "it. To choose fairly: --val-fraction 0.1."
)


@dataclass(frozen=True)
class Pivot:
    """The measure by method and options: the last option in columns, the others with the method in rows."""

    measure: str
    row_names: tuple[str, ...]
    column: str
    values: tuple[str, ...]
    rows: tuple[tuple[tuple[str, ...], tuple[Spread | None, ...]], ...]


@dataclass(frozen=True)
class Choice:
    """The best setting of a method on a task, and what it reaches on the test data."""

    task: str
    method: str
    setting: str
    accuracy: Spread | None


@dataclass(frozen=True)
class Sweep:
    """What a grid shows."""

    chosen_by: str
    choices: tuple[Choice, ...]
    pivot: Pivot


def sweep_of(groups: Sequence[MethodRuns]) -> Sweep | None:
    """Return the view of a grid; None where no option was varied."""
    if not any(group.swept for group in groups):
        return None
    tasks, tuned = tasks_of(groups), tuned_options(groups)
    choices = [_choice(task, group) for task in tasks for group in best_settings(task).groups] if tuned else []
    return Sweep(chosen_by(tasks) if tuned else "", tuple(choices), _pivot(groups))


def tuned_options(groups: Sequence[MethodRuns]) -> list[str]:
    """Return the swept options that a user may choose: those that do not make another task."""
    return [key for key in swept_keys(groups) if not makes_task(key)]


def chosen_by(tasks: Sequence[Task]) -> str:
    """Say how the best settings are chosen, as a sentence."""
    metrics = [_validation_metric(task) for task in tasks]
    named = [metric.replace("_", " ") for metric in dict.fromkeys(metrics) if metric is not None]
    return ON_TEST if None in metrics else ON_VALIDATION.format(metric=" or ".join(named))


def _validation_metric(task: Task) -> SelectBy | None:
    """Return the metric by which all runs select a round, accuracy if they differ, None if they do not select."""
    runs = task.evaluated
    metrics = {run.select_by for run in runs}
    metric: SelectBy = metrics.pop() if len(metrics) == 1 else "accuracy"
    measured = [run.outcome.number(VALIDATION_METRICS[metric]) is not None for run in runs]
    return metric if measured and all(measured) else None


def best_settings(task: Task) -> Task:
    """Return the task with one group per method: its best setting on the validation data, or on the test data."""
    metric = _validation_metric(task)
    column = task.first if metric is None else VALIDATION_METRICS[metric]
    best: dict[str, MethodRuns] = {}
    for group in task.groups:
        name = group.method
        if name not in best or _score(group, column) > _score(best[name], column):
            best[name] = group
    return Task(task.name, tuple(best.values()))


def sweep_figures(groups: Sequence[MethodRuns]) -> list[Curves | Bars]:
    """Draw what ranks methods over each option that was varied: a curve per method and setting of the others."""
    return [figure for key in swept_keys(groups) if (figure := _over_option(groups, key)) is not None]


def _score(group: MethodRuns, column: str) -> float:
    value = spread_of(group, column)
    return float("-inf") if value is None or group.diverged else value.mean


def _choice(task: Task, group: MethodRuns) -> Choice:
    return Choice(task.name, group.method, chosen_options(group), spread_of(group, task.first))


def _over_option(groups: Sequence[MethodRuns], key: str) -> Curves | Bars | None:
    lines: dict[tuple[str, str], list[tuple[object, Spread]]] = {}
    first = Task("", tuple(groups)).first
    for group in groups:
        others = ", ".join(f"{k}={v}" for k, v in group.swept.items() if k != key)
        text, value = group.values_of([key])[key], group.settings.get(key)
        if text == NOT_APPLICABLE:
            continue
        if (accuracy := spread_of(group, first)) is not None and not group.diverged:
            shown = value if is_number(value) else text
            lines.setdefault((group.method, others), []).append((shown, accuracy))
    values = list(dict.fromkeys(value for line in lines.values() for value, _ in line))
    if len(values) < 2:
        return None
    labels = {line: f"{line[0]} ({line[1]})" if line[1] else line[0] for line in lines}
    styles = styles_of(list(lines))
    measure = FIRST[first]
    title, slug = f"{measure.capitalize()} over {key}", f"over-{key.replace('.', '-')}"
    caption = _caption(groups)
    if all(is_number(value) for value in values):
        numbers = [float(str(value)) for value in values]
        curves = [_curve(labels[line], points, styles[line]) for line, points in lines.items()]
        return Curves(
            key=slug,
            title=title,
            caption=caption,
            curves=curves,
            x_label=key,
            y_label=measure,
            log_x=spans_decades(numbers),
        )
    bars = [
        Bar.of(labels[line], [dict(cells).get(value) for value in values], styles[line])
        for line, cells in lines.items()
    ]
    names = [str(value) for value in values]
    return Bars(key=slug, title=title, caption=caption, categories=names, bars=bars, x_label=key, y_label=measure)


def spans_decades(values: Sequence[float]) -> bool:
    """Return whether an axis of these values is logarithmic."""
    return bool(values) and min(values) > 0 and max(values) / min(values) >= LOG_RATIO


def _caption(groups: Sequence[MethodRuns]) -> str:
    caption = "A colour per method."
    if any(len(group.runs) > 1 for group in groups):
        caption += " Mean over the seeds; the band is one standard deviation."
    return caption + (" Runs that diverged are left out." if any(group.diverged for group in groups) else "")


def _curve(name: str, line: Sequence[tuple[object, Spread]], style: int) -> Curve:
    points = sorted(((float(str(value)), accuracy) for value, accuracy in line), key=lambda point: point[0])
    return Curve.of(name, [value for value, _ in points], [accuracy for _, accuracy in points], style)


def _pivot(groups: Sequence[MethodRuns]) -> Pivot:
    *others, last = keys = swept_keys(groups)
    values = tuple(dict.fromkeys(group.values_of(keys)[last] for group in groups))
    cells: dict[tuple[str, ...], dict[str, Spread | None]] = {}
    first = Task("", tuple(groups)).first
    for group in groups:
        options = group.values_of(keys)
        row = (group.method, *(options[key] for key in others))
        cells.setdefault(row, {})[options[last]] = None if group.diverged else spread_of(group, first)
    rows = tuple((row, tuple(columns.get(value) for value in values)) for row, columns in cells.items())
    return Pivot(FIRST[first].capitalize(), ("method", *others), last, values, rows)
