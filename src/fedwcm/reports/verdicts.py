"""What a comparison shows, in words: per task the best method, what it beats, and what ties with it."""

from collections.abc import Sequence
from dataclasses import replace

from fedwcm.reports.load import MethodRuns
from fedwcm.reports.statistics import Difference
from fedwcm.reports.sweep import best_settings, chosen_by, tuned_options
from fedwcm.reports.table import (
    FIRST,
    TASK_SECTIONS,
    Task,
    method_name,
    pairs,
    spread_of,
    swept_options,
    tasks_of,
)
from fedwcm.reports.table_files import cell_text
from fedwcm.reports.text import listed

JUDGED = (*FIRST, "few")
"""The metrics whose pairs are in `comparison.json`."""

SHOWN = 0.001
"""The smallest difference that three digits show."""

MOST_NAMED = 6
"""Methods that a sentence lists by name; of more it gives the number."""


def comparison_headline(groups: Sequence[MethodRuns]) -> list[str]:
    """What a comparison shows, a paragraph per task."""
    tasks, tuned = tasks_of(groups), tuned_options(groups)
    said = [
        (f"{task.name}: " if len(tasks) > 1 else "") + " ".join(_sentences(best_settings(task) if tuned else task))
        for task in tasks
    ]
    if not tuned:
        return said
    return [*said, chosen_by(tasks)]


def verdict_records(groups: Sequence[MethodRuns]) -> list[dict[str, object]]:
    """Every pair of methods on the same task, the better first, for each judged metric."""
    return [
        {"task": task.name, "metric": metric, **_record(pair)}
        for task in tasks_of(groups)
        for metric in JUDGED
        for pair in pairs(task, metric)
    ]


def _record(pair: Difference) -> dict[str, object]:
    test = pair.test
    return {
        "method": pair.method,
        "other": pair.other,
        "seeds": pair.seeds,
        "difference": None if test is None else test.mean,
        "low": None if test is None else test.low,
        "high": None if test is None else test.high,
        "p": None if test is None else test.p,
        "p_corrected": pair.corrected,
        "verdict": _word(pair),
    }


def _word(pair: Difference) -> str:
    if pair.test is None:
        return "no verdict"
    if pair.reversed:
        return "worse"
    return "better" if pair.distinguishable else "not distinguishable"


def _sentences(task: Task) -> list[str]:
    task, column = _shortly_named(task), task.first
    tested = {group.label: spread_of(group, column) for group in task.groups if not group.diverged}
    known = {label: accuracy for label, accuracy in tested.items() if accuracy is not None}
    if not known:
        return ["No run was tested."]
    found = pairs(task)
    has = "ends with" if column == "final_accuracy" else "in the round selected on validation data has"
    best = found[0].method if found else max(known, key=lambda label: known[label].mean)
    if not found:
        return [f"{best} {has} a test accuracy of {cell_text(known[best])}."]
    against = [pair for pair in found if pair.method == best]
    said = [f"{best} {has} the highest test accuracy, {cell_text(known[best])}."]
    if all(pair.test is None for pair in against):
        nearest = against[0].other
        gap = known[best].mean - known[nearest].mean
        seeds = "one seed" if against[0].seeds else "no shared seed"
        return [*said, f"{nearest} is {_behind(gap)}, with {seeds}: no verdict without more seeds."]
    return said + _judged(against)


def _behind(gap: float) -> str:
    if gap == 0:
        return "equal to it"
    return f"{gap:.3f} behind" if gap >= SHOWN else f"less than {SHOWN} behind"


def _shortly_named(task: Task) -> Task:
    """The task with names that leave out what all its methods have in common."""
    names = {group.label: _short_name(group) for group in task.groups}
    if len(set(names.values())) < len(names):
        return task
    return replace(task, groups=tuple(replace(group, label=names[group.label]) for group in task.groups))


def _short_name(group: MethodRuns) -> str:
    own = [
        f"{key}={value}" for key, value in swept_options(group).items() if key.split(".")[0] not in TASK_SECTIONS
    ]
    return f"{method_name(group)} ({', '.join(own)})" if own else method_name(group)


def _judged(against: Sequence[Difference]) -> list[str]:
    """What the best is better than, and what it cannot be told apart from."""
    beaten = [pair for pair in against if pair.distinguishable]
    reversed_ = [pair for pair in against if pair.reversed]
    tied = [pair for pair in against if pair.test is not None and pair not in (*beaten, *reversed_)]
    open_ = [pair.other for pair in against if pair.test is None]
    said = []
    if beaten:
        gains = [pair.test.mean for pair in beaten if pair.test is not None]
        by = f"{gains[0]:.3f}" if len(gains) == 1 else f"{min(gains):.3f} to {max(gains):.3f}"
        said.append(f"It is better than {_named(beaten)}, by {by}.")
    if tied:
        seeds = min(pair.seeds for pair in tied)
        said.append(f"With {seeds} seeds it is not distinguishable from {_named(tied)}: {_interval(tied)}.")
    if reversed_:
        said.append(f"On the seeds that they share, {_named(reversed_)} did better.")
    if open_:
        said.append(f"No verdict on {listed(open_)}: too few shared seeds.")
    return said


def _interval(tied: Sequence[Difference]) -> str:
    """How far ahead the best is of the nearest that it cannot be told apart from."""
    nearest = tied[0]
    test = nearest.test
    assert test is not None
    whom = f" of {nearest.other}" if len(tied) > 1 else ""
    if test.low == test.high == 0:
        return f"equal to {nearest.other} with every seed" if len(tied) > 1 else "equal with every seed"
    lead = f"{test.mean:.3f} ahead{whom}" if nearest.ahead else f"{-test.mean:.3f} behind{whom} on shared seeds"
    return f"{lead}, 95 % interval {_signed(test.low)} to {_signed(test.high)}"


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def _named(found: Sequence[Difference]) -> str:
    names = [pair.other for pair in found]
    return listed(names) if len(names) <= MOST_NAMED else f"{len(names)} others"
