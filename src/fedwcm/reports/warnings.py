"""What a reader should know before believing the numbers, once for all seeds of a method, and what helps."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from fedwcm.experiment.records import RoundRecord
from fedwcm.experiment.run import Run
from fedwcm.reports.load import MethodRuns
from fedwcm.reports.series import metric
from fedwcm.reports.styles import OUT_OF_CONTROL
from fedwcm.reports.text import join_names, plain_number

MOST_WARNINGS = 8

RISING = 0.02
"""Rise of the balanced accuracy over the last quarter of a run from which it is said to go on rising."""

SMALLER_STEPS = "A smaller learning rate helps: --lr."
EXACT_NORM = "To avoid it: --set method.momentum_norm=exact."


def warnings(groups: Sequence[MethodRuns]) -> list[str]:
    """Warn of runs that diverged, exploded or did not finish, and of momentum that grows; once for all seeds."""
    kinds = (_warn_diverged, _warn_unfinished, _growing, _warn_exploded)
    texts = [text for group in groups for kind in kinds for text in kind(group)]
    more = len(texts) - MOST_WARNINGS
    return texts if more <= 0 else [*texts[:MOST_WARNINGS], f"And {more} more of this kind."]


def equal_labels(groups: Sequence[MethodRuns]) -> list[str]:
    """Return a sentence for every two labels whose models were the same in every round with every seed."""
    traces = {group.label: {str(run.seed): _trace(run) for run in group.runs} for group in groups}
    return [
        f"{one} and {other} gave the same models, bit by bit: what tells them apart has no effect here"
        for one, other in combinations(traces, 2)
        if traces[one] == traces[other] and any(map(len, traces[one].values()))
    ]


def _trace(run: Run) -> list[tuple[object, ...]]:
    return [
        (record.round, record.train_loss, record.test_loss, record.per_class_accuracy) for record in run.history
    ]


def still_rising(history: Sequence[RoundRecord]) -> str | None:
    """Return a sentence if the last evaluations still rise clearly: more rounds would give more.

    The last quarter of the evaluations is compared with the quarter before; one outlier does not count. An average
    of models (`server.ema`) that is far behind the last round's model has not caught up.
    """
    values = [record.balanced_accuracy for record in history if record.balanced_accuracy is not None]
    quarter = len(values) // 4
    if not quarter:
        return None
    before, last = np.mean(values[-2 * quarter : -quarter]), np.mean(values[-quarter:])
    rounds = history[-1].round
    if last - before < RISING:
        return _lag(history[-quarter:], rounds)
    return (
        f"the balanced accuracy still rises, by {last - before:.2f} over the last {rounds // 4} of {rounds} "
        "rounds: more rounds (--rounds) would give more"
    )


def _lag(history: Sequence[RoundRecord], rounds: int) -> str | None:
    pairs = [(record.last_round_accuracy, record.test_accuracy) for record in history]
    lags = [newest - average for newest, average in pairs if newest is not None and average is not None]
    if not lags or np.mean(lags) < RISING:
        return None
    return (
        f"the average of the models over rounds is still {np.mean(lags):.2f} behind the last model after {rounds} "
        "rounds: more rounds (--rounds) would give more"
    )


def rising_labels(groups: Sequence[MethodRuns]) -> list[str]:
    """Return a sentence with the methods of which every run still rises at its end; none if there is none."""
    rising = [group.label for group in groups if all(still_rising(run.history) for run in group.runs)]
    if not rising:
        return []
    verb = "rises" if len(rising) == 1 else "rise"
    return [f"{join_names(rising)} still {verb} clearly at the end: more rounds (--rounds) would give more"]


def _warn_diverged(group: MethodRuns) -> list[str]:
    runs = [run for run in group.runs if run.diverged]
    if not runs:
        return []
    reasons = list(dict.fromkeys(run.diverged for run in runs if run.diverged))
    more = " (the others similarly)" if len(reasons) > 1 else ""
    sentence = f"{_who(group, runs)}: diverged, {reasons[0]}{more}"
    growing = any(map(_growing_rounds, runs))
    cure = f"Its momentum grew by itself. {EXACT_NORM}" if growing and _is_nominal(group) else SMALLER_STEPS
    return [f"{sentence}. The numbers are those of the last evaluation before. {cure}"]


def _warn_unfinished(group: MethodRuns) -> list[str]:
    runs = [run for run in group.runs if not run.finished]
    if not runs:
        return []
    done = _range([run.history[-1].round if run.history else 0 for run in runs])
    rounds = runs[0].settings.get("run.rounds", "?")
    return [
        f"{_who(group, runs)}: not finished, {done} of {rounds} rounds so far. If no process is running it "
        "any more, repeat the command that started it (run: with --resume)."
    ]


def _growing(group: MethodRuns) -> list[str]:
    rounds = {run: number for run in group.runs if (number := _growing_rounds(run))}
    runs = [run for run in rounds if not run.diverged]
    if not runs:
        return []
    where = f"{_range([rounds[run] for run in runs])} of {_range([len(run.history) for run in runs])}"
    return [
        f"{_who(group, runs)}: the gain of the momentum is 1 or more in {where} evaluated rounds: "
        "there it grows by itself, whatever the data." + (f" {EXACT_NORM}" if _is_nominal(group) else "")
    ]


def _warn_exploded(group: MethodRuns) -> list[str]:
    losses = {run: [record.test_loss or 0.0 for record in run.history] for run in group.runs}
    runs = [run for run in group.runs if max(losses[run], default=0.0) > OUT_OF_CONTROL and not run.diverged]
    if not runs or any(map(_growing_rounds, runs)):  # which was told, with its cause
        return []
    highest = plain_number(max(max(losses[run]) for run in runs))
    last = plain_number(max(losses[run][-1] for run in runs))
    ended = "" if last == highest else f" and ends at {last}"
    return [f"{_who(group, runs)}: the test loss rises to {highest}{ended}: out of control. {SMALLER_STEPS}"]


def _growing_rounds(run: Run) -> int:
    return sum((metric("gain")(record) or 0.0) >= 1 for record in run.history)


def _is_nominal(group: MethodRuns) -> bool:
    """Return whether the momentum is divided by the nominal number of steps, which lets its gain exceed 1."""
    return group.settings.get("method.momentum_norm") == "nominal"


def _who(group: MethodRuns, runs: Sequence[Run]) -> str:
    if len(group.runs) == 1:
        return f"{group.label}, seed {runs[0].seed}"
    if len(runs) == len(group.runs):
        return f"{group.label}, {'both' if len(runs) == 2 else f'all {len(runs)}'} seeds"
    seeds = join_names([str(run.seed) for run in runs])
    return f"{group.label}, seed{'s' if len(runs) > 1 else ''} {seeds} of {len(group.runs)}"


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"
