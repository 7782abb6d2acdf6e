"""Numbers over rounds, as mean and spread over the runs of a group."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedwcm.reports.figures import Bar, Curve, Number, thinned
from fedwcm.reports.load import LoadedRun, MethodRuns
from fedwcm.runs.folder import Record

Reader = Callable[[Record], float | None]
"""Finds a number in the record of an evaluated round; None where it is not there."""


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (0 for one value) of a number over runs."""

    mean: float
    std: float
    runs: int


def field(*path: str, scale: float = 1.0) -> Reader:
    """The number under this key, or this path of keys."""

    def read(record: Record) -> float | None:
        value: object = record
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return float(value) * scale if isinstance(value, int | float) else None

    return read


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation of at least one number."""
    return Spread(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0, len(values))


def curve(name: str, runs: Sequence[LoadedRun], read: Reader, limit: int) -> Curve | None:
    """A number over rounds, each the mean of the runs that got there; None if no round has it."""
    values: dict[float, list[float]] = {}
    for run in runs:
        for record in run.history:
            value = read(record)
            if value is not None:
                values.setdefault(float(str(record["round"])), []).append(value)
    if not values:
        return None
    rounds = sorted(values)
    rounds = [rounds[i] for i in thinned(len(rounds), limit)]
    spreads = [spread(values[number]) for number in rounds]
    band = [s.std for s in spreads] if len(runs) > 1 else None
    return Curve(name, rounds, [s.mean for s in spreads], band)


def curves(groups: Sequence[MethodRuns], read: Reader, limit: int) -> list[Curve]:
    """The curve of every group that has this number."""
    found = [curve(group.label, group.runs, read, limit) for group in groups]
    return [line for line in found if line is not None]


def last(run: LoadedRun) -> Record:
    """The record of the last evaluated round; empty where there is none."""
    return run.history[-1] if run.history else {}


def layers(run: LoadedRun) -> list[str]:
    """The layers whose neuron concentration was measured, from first to last."""
    measured = last(run).get("concentration_layers")
    return list(measured) if isinstance(measured, dict) else []


def bar(name: str, runs: Sequence[LoadedRun], readers: Sequence[Reader]) -> Bar:
    """Numbers of the last evaluated round, averaged over the runs."""
    means: list[Number] = []
    stds: list[Number] = []
    for read in readers:
        values = [value for run in runs if (value := read(last(run))) is not None]
        means.append(spread(values).mean if values else None)
        stds.append(spread(values).std if values else None)
    return Bar(name, means, stds if len(runs) > 1 else None)


def per_class(index: int) -> Reader:
    """The accuracy of one class."""

    def read(record: Record) -> float | None:
        accuracies = record.get("per_class_accuracy")
        return accuracies[index] if isinstance(accuracies, list) and index < len(accuracies) else None

    return read


def head_to_tail(run: LoadedRun) -> list[int]:
    """The classes that the training data has, the most frequent first."""
    present = [index for index, count in enumerate(run.train_counts) if count]
    return sorted(present, key=lambda index: -run.train_counts[index])


def class_share(run: LoadedRun, index: int) -> float:
    """The share of a class in the training data, in per cent."""
    return 100.0 * run.train_counts[index] / sum(run.train_counts)


def megabytes(run: LoadedRun) -> float | None:
    """What a round sends and receives, in MB (10⁶ bytes): the mean of the evaluated rounds."""
    totals = [float(str(r["bytes_down"])) + float(str(r["bytes_up"])) for r in run.history if "bytes_down" in r]
    return float(np.mean(totals)) / 1e6 if totals else None


def seconds_per_round(run: LoadedRun) -> float | None:
    """As the summary has it; from the last record while a run goes on."""
    value = field("seconds_per_round")(run.summary)
    total = field("seconds")(last(run))
    return total / float(str(last(run)["round"])) if value is None and total is not None else value


def milestones(run: LoadedRun) -> list[tuple[float, float]]:
    """The rounds in which the test accuracy rose above all before, each with it: when any level was reached."""
    best, found = -1.0, []
    for record in run.history:
        accuracy = field("test_accuracy")(record)
        if accuracy is not None and accuracy > best:
            best = accuracy
            found.append((float(str(record["round"])), accuracy))
    return found
