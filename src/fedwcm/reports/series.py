"""Numbers over rounds: mean and spread over the runs of a group."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedwcm.core.types import Ints
from fedwcm.experiment.records import RoundRecord
from fedwcm.experiment.run import Run
from fedwcm.metrics.classification import ShotRule, shot_groups
from fedwcm.reports.figures import Curve, thin_curve
from fedwcm.reports.load import MethodRuns
from fedwcm.reports.statistics import spread

Reader = Callable[[RoundRecord], float | None]
"""Reads a number from the record of an evaluated round; None where there is none."""

Measure = Callable[[Run], float | None]
"""A number of a run; None where there is none."""


def metric(*path: str, scale: float = 1.0) -> Reader:
    """Return a reader of the number under this key, or this path of keys."""

    def read(record: RoundRecord) -> float | None:
        value = record.number(*path)
        return None if value is None else value * scale

    return read


def curve(name: str, runs: Sequence[Run], read: Reader, limit: int) -> Curve | None:
    """Return a number over rounds, the mean of the runs that reached each round; None if no round has it."""
    values: dict[float, list[float]] = {}
    for run in runs:
        for record in run.history:
            value = read(record)
            if value is not None:
                values.setdefault(float(record.round), []).append(value)
    if not values:
        return None
    rounds = sorted(values)
    rounds = [rounds[i] for i in thin_curve(len(rounds), limit)]
    return Curve.of(name, rounds, [spread(values[number]) for number in rounds])


def curves(groups: Sequence[MethodRuns], read: Reader, limit: int) -> list[Curve]:
    """Return the curve of every group that has this number."""
    drawn = [curve(group.label, group.runs, read, limit) for group in groups]
    return [line for line in drawn if line is not None]


def layers(run: Run) -> list[str]:
    """Return the layers whose neuron concentration was measured, from first to last."""
    measured = run.history[-1].extra.get("concentration_layers") if run.history else None
    return list(measured) if isinstance(measured, Mapping) else []


def at_end(*path: str) -> Measure:
    """Return a measure: the number under this path of keys in the round whose model is kept."""
    return lambda run: run.kept.number(*path) if run.kept else None


def class_accuracy(index: int) -> Measure:
    """Return a measure: the accuracy of one class in the round whose model is kept."""

    def measure(run: Run) -> float | None:
        accuracies = (run.kept and run.kept.per_class_accuracy) or ()
        return accuracies[index] if index < len(accuracies) else None

    return measure


def head_to_tail(run: Run) -> list[int]:
    """Return the classes present in the training data, the most frequent first."""
    present = [index for index, count in enumerate(run.train_counts) if count]
    return sorted(present, key=lambda index: -run.train_counts[index])


def shots_of(run: Run) -> dict[str, Ints]:
    """Return the classes with many, medium and few training samples; nothing where their number is not known."""
    rule: ShotRule = "share" if run.settings.get("run.shot_groups") == "share" else "range"
    return shot_groups(np.array(run.train_counts), rule) if any(run.train_counts) else {}


def class_share(run: Run, index: int) -> float:
    """Return the share of a class in the training data, in percent."""
    return 100.0 * run.train_counts[index] / sum(run.train_counts)


def megabytes(run: Run) -> float | None:
    """Return the traffic of a round in MB (10⁶ bytes), both ways: the mean of the evaluated rounds."""
    totals = [record.bytes_down + record.bytes_up for record in run.history]
    return float(np.mean(totals)) / 1e6 if totals else None


def seconds_per_round(run: Run) -> float | None:
    """Return the seconds of a round, from the summary or from the last record of a run in progress."""
    if run.summary is not None:
        return run.summary.seconds_per_round
    return run.history[-1].seconds / run.history[-1].round if run.history else None


def milestones(run: Run) -> list[tuple[float, float]]:
    """Return the rounds that set a new best test accuracy, with it: they tell when any level was first reached."""
    best, rounds = -1.0, []
    for record in run.history:
        if record.test_accuracy is not None and record.test_accuracy > best:
            best = record.test_accuracy
            rounds.append((float(record.round), best))
    return rounds
