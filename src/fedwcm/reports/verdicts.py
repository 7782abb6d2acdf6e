"""What a comparison shows, in words: per task the best method, what it beats, what equals it, what is open."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedwcm.experiment.run import Run
from fedwcm.reports.load import MethodRuns
from fedwcm.reports.series import milestones, shots_of
from fedwcm.reports.statistics import Difference, Spread
from fedwcm.reports.sweep import best_settings, chosen_by, tuned_options
from fedwcm.reports.table import FIRST, Task, chosen_options, needed_text, sign, spread_of, tasks_of
from fedwcm.reports.table_files import cell_text
from fedwcm.reports.text import join_names

JUDGED = (*FIRST, "few")
"""The metrics whose pairs are in `comparison.json`."""

SHOWN = 0.001
"""The smallest difference that three digits show."""

MOST_NAMED = 6
"""Methods, or classes, that a sentence lists by name; of more it gives the number."""


def comparison_headline(groups: Sequence[MethodRuns]) -> list[str]:
    """Return what a comparison shows, a text per task: a line for all classes, the rare ones, the rounds saved."""
    tasks, tuned = tasks_of(groups), tuned_options(groups)
    texts = [
        (f"{task.name}: " if len(tasks) > 1 else "") + "\n".join(_lines(best_settings(task) if tuned else task))
        for task in tasks
    ]
    if not tuned:
        return texts
    return [*texts, chosen_by(tasks)]


def verdict_records(groups: Sequence[MethodRuns]) -> list[dict[str, object]]:
    """Return every pair of methods on the same task, the better first, for each judged metric."""
    return [
        {"task": task.name, "metric": metric, **_record(pair), **_rows(task, pair, metric)}
        for task in tasks_of(groups)
        for metric in JUDGED
        for pair in task.pairs(metric)
    ]


def _record(pair: Difference) -> dict[str, object]:
    test = pair.test
    low, high = (None, None) if test is None else pair.interval
    return {
        "method": pair.method,
        "other": pair.other,
        "seeds": pair.seeds,
        "difference": None if test is None else test.mean,
        "low": low,
        "high": high,
        "p": None if test is None else test.p,
        "p_corrected": pair.corrected,
        "verdict": pair.verdict,
        "seeds_needed": pair.seeds_needed if pair.verdict == "undecided" else None,
    }


def _rows(task: Task, pair: Difference, metric: str) -> dict[str, object]:
    interval = task.row_interval(pair) if metric == task.first else None
    return {} if interval is None else {"rows_low": interval[0], "rows_high": interval[1]}


def _lines(task: Task) -> list[str]:
    task, column = _shortly_named(task), task.first
    tested = {group.label: spread_of(group, column) for group in task.groups if not group.diverged}
    known = {label: accuracy for label, accuracy in tested.items() if accuracy is not None}
    if not known:
        return ["No run was tested."]
    against = task.against_best()
    has = "in the round selected on validation data has" if task.is_selected else "ends with"
    best = against[0].method if against else max(known, key=lambda label: known[label].mean)
    if not against:
        return [f"{best} {has} a {FIRST[column]} of {cell_text(known[best])}."]
    leader = f"{best} {has} the highest {FIRST[column]}, {cell_text(known[best])}."
    overall = " ".join([leader, *_judge(against, known), *_on_rows(task, against)])
    saved = [] if column == "balanced_accuracy" else _rounds_saved(task, best)
    return [overall, *_on_rare_classes(task, best), *saved]


def _on_rows(task: Task, against: Sequence[Difference]) -> list[str]:
    """Return what the test rows say of the nearest pair that the seeds leave open."""
    pair = next((pair for pair in against if pair.verdict in ("undecided", "no verdict")), None)
    interval = None if pair is None else task.row_interval(pair)
    if pair is None or interval is None:
        return []
    low, high = interval
    differ = "differ" if low > 0 or high < 0 else "do not differ clearly"
    return [
        f"The trained models of {pair.method} and {pair.other} {differ} on these test rows "
        f"(interval {sign(low)} to {sign(high)}); how other seeds would train is another question."
    ]


def _on_rare_classes(task: Task, best: str) -> list[str]:
    """Say how the rare classes fare, of which the overall accuracy says little."""
    against = task.against_best("few")
    means = {group.label: spread_of(group, "few") for group in task.groups}
    known = {label: value for label, value in means.items() if value is not None}
    if not against or len({value.mean for value in known.values()}) == 1:
        return []
    first = against[0].method
    whose = "it" if first == best else first
    sentence = (
        f"On the rare classes{_names(task.groups[0].runs[0])} {whose} has the highest, {cell_text(known[first])}."
    )
    return [" ".join([sentence, *_judge(against, known)])]


def _names(run: Run) -> str:
    """Return the names of the rare classes, if they are few and short."""
    names = [run.classes[index] for index in shots_of(run).get("few", ())]
    return f" ({join_names(names)})" if 0 < len(names) <= MOST_NAMED and max(map(len, names)) < 20 else ""


def default_target(groups: Sequence[MethodRuns]) -> float:
    """Return nine tenths of the best accuracy, rounded down to a multiple of 0.05."""
    finals = [run.outcome.accuracy or 0.0 for group in groups for run in group.counted]
    return round(max(0.05, math.floor(0.9 * max(finals) * 20) / 20), 2)


def _rounds_saved(task: Task, best: str) -> list[str]:
    """Say how many rounds the best takes to an accuracy that the others reach later, or not in every run."""
    target = default_target(task.groups)
    rounds = {group.label: _rounds_to(group, target) for group in task.groups if not group.diverged}
    own = rounds.pop(best, None)
    later = {label: number for label, number in rounds.items() if number is not None}
    if own is None or not rounds or any(number <= own for number in later.values()):
        return []
    sentence = f"{best} reaches {target:g} after {own:.0f} rounds on average"
    if later:
        least, most = round(min(later.values())), round(max(later.values()))
        sentence += f"; {_several(list(later))} after {least if least == most else f'{least} to {most}'}"
    never = [label for label in rounds if label not in later]
    return [sentence + (f"; {_several(never)} not in every run" if never else "") + "."]


def _rounds_to(group: MethodRuns, target: float) -> float | None:
    """Return the mean rounds until the accuracy was at the target; None if a run did not get there."""
    firsts = [
        next((number for number, value in milestones(run) if value >= target), None) for run in group.counted
    ]
    reached = [number for number in firsts if number is not None]
    return float(np.mean(reached)) if len(reached) == len(firsts) else None


def _behind(gap: float) -> str:
    if gap == 0:
        return "equal to it"
    return f"{gap:.3f} behind" if gap >= SHOWN else f"less than {SHOWN} behind"


def _shortly_named(task: Task) -> Task:
    """Return the task with names that leave out what all its methods have in common."""
    names = {group.label: _short_name(group) for group in task.groups}
    if len(set(names.values())) < len(names):
        return task
    return replace(task, groups=tuple(replace(group, label=names[group.label]) for group in task.groups))


def _short_name(group: MethodRuns) -> str:
    options = chosen_options(group)
    return f"{group.method} ({options})" if options else group.method


def _judge(against: Sequence[Difference], means: dict[str, Spread]) -> list[str]:
    """Return what the best is better than, what equals it, and what the seeds cannot decide."""
    by_verdict = {word: [pair for pair in against if pair.verdict == word] for word in VERDICTS}
    if len(by_verdict["no verdict"]) == len(against):
        nearest = against[0]
        gap = means[nearest.method].mean - means[nearest.other].mean
        seeds = "one seed" if nearest.seeds else "no shared seed"
        return [f"{nearest.other} is {_behind(gap)}, with {seeds}: no verdict without more seeds."]
    sentences = []
    if beaten := by_verdict["better"]:
        gains = [abs(pair.test.mean) for pair in beaten if pair.test is not None]
        by = f"{gains[0]:.3f}" if len(gains) == 1 else f"{min(gains):.3f} to {max(gains):.3f}"
        sentences.append(f"It is better than {_name_methods(beaten)}, by {by} ({_seeds(beaten)}).")
    if equal := by_verdict["equivalent"]:
        sentences.append(f"It is equivalent to {_name_methods(equal)} within {equal[0].margin} ({_seeds(equal)}).")
    if undecided := by_verdict["undecided"]:
        sentences.append(_open(undecided))
    if worse := by_verdict["worse"]:
        sentences.append(f"On the seeds that they share, {_name_methods(worse)} did better.")
    if unjudged := by_verdict["no verdict"]:
        sentences.append(f"No verdict on {_name_methods(unjudged)}: too few shared seeds.")
    return sentences


VERDICTS = ("better", "equivalent", "undecided", "worse", "no verdict")


def _open(undecided: Sequence[Difference]) -> str:
    """Return what the seeds cannot decide: the lead over the nearest, the names, and how many seeds would tell."""
    nearest, *rest = undecided
    others = [pair.other for pair in rest] if len(rest) < MOST_NAMED else [f"{len(rest)} others"]
    names = join_names([f"{nearest.other} ({_lead(nearest)})", *others])
    needed = [pair.seeds_needed for pair in undecided]
    most = None if None in needed else max(number for number in needed if number is not None)
    return (
        f"{_seeds(undecided).capitalize()} do not decide between it and {names}; {needed_text(most)} are needed."
    )


def _lead(pair: Difference) -> str:
    assert pair.test is not None
    low, high = pair.interval
    return f"lead {sign(pair.test.mean)}, interval {sign(low)} to {sign(high)}"


def _seeds(differences: Sequence[Difference]) -> str:
    return f"{min(pair.seeds for pair in differences)} seeds"


def _name_methods(differences: Sequence[Difference]) -> str:
    return _several([pair.other for pair in differences])


def _several(names: Sequence[str]) -> str:
    return join_names(names) if len(names) <= MOST_NAMED else f"{len(names)} others"
