"""The paper's own layout with ours, the paper's number and the difference in every cell."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedwcm.experiment.records import Summary
from fedwcm.reproduction.cells import Cell
from fedwcm.reproduction.paper_numbers import PaperTable
from fedwcm.reproduction.presets import Preset
from fedwcm.reproduction.store import StoredRun

Point = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Entry:
    """A cell of the table: the runs that are there, of how many, and the paper's number.

    A run that diverged has no accuracy: that of its last rounds says how far it came before it was lost.
    """

    point: Mapping[str, str]
    runs: Sequence[StoredRun]
    wanted: int
    paper: float | None

    @property
    def diverged(self) -> int:
        """How many of the runs diverged."""
        return sum(run.summary.diverged is not None for run in self.runs)

    @property
    def measured(self) -> list[Summary]:
        """The runs that have an accuracy."""
        summaries = [run.summary for run in self.runs]
        return [each for each in summaries if each.diverged is None and each.final_accuracy is not None]

    @property
    def ours(self) -> float | None:
        """The mean final accuracy over the seeds that have one."""
        return _mean(run.final_accuracy for run in self.measured)

    @property
    def balanced(self) -> float | None:
        """The mean over the classes, which differs where the test set is unbalanced."""
        return _mean(run.balanced_accuracy for run in self.measured)

    @property
    def unbalanced(self) -> bool:
        return any(run.summary.has_unbalanced_test_set for run in self.runs)

    @property
    def spread(self) -> float | None:
        values = [run.final_accuracy for run in self.measured if run.final_accuracy is not None]
        return float(np.std(values, ddof=1)) if len(values) > 1 else None

    @property
    def difference(self) -> float | None:
        return None if self.ours is None or self.paper is None else self.ours - self.paper


def entries(preset: Preset, runs: Sequence[tuple[Cell, StoredRun | None]]) -> list[Entry]:
    """One entry per point of the grid and method, in the order of the runs."""
    paper, by_point = PaperTable(preset.name), dict[Point, list[tuple[Cell, StoredRun | None]]]()
    for cell, run in runs:
        by_point.setdefault(tuple(cell.point.items()), []).append((cell, run))
    return [
        Entry(
            dict(point),
            [run for _, run in members if run is not None],
            len(members),
            paper.accuracy(dict(point)) if dict(point)["dataset"] in preset.datasets else None,
        )
        for point, members in by_point.items()
    ]


def markdown(preset: Preset, cells: Sequence[Entry]) -> str:
    """The table as Markdown: ours (± over the seeds), the paper's, the difference."""
    rows, columns = (_axes(axes, cells) for axes in (preset.rows, preset.columns))
    across = list(dict.fromkeys(_part(entry, columns) for entry in cells))
    lines = [[*rows, *(" ".join(part) or "accuracy" for part in across)]]
    for down in dict.fromkeys(_part(entry, rows) for entry in cells):
        found = {_part(entry, columns): entry for entry in cells if _part(entry, rows) == down}
        lines.append([*down, *(_cell(found[part]) if part in found else "" for part in across)])
    rule = ["---"] * len(lines[0])
    return "\n".join("| " + " | ".join(line) + " |" for line in [lines[0], rule, *lines[1:]])


def csv_text(cells: Sequence[Entry]) -> str:
    """The same with all digits, one line per cell."""
    text = io.StringIO()
    axes = list(cells[0].point) if cells else []
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*axes, "ours", "std", "balanced", "seeds", "wanted", "diverged", "paper", "difference"])
    for entry in cells:
        counts = [len(entry.measured), entry.wanted, entry.diverged]
        row = [entry.ours, entry.spread, entry.balanced, *counts, entry.paper, entry.difference]
        writer.writerow([*entry.point.values(), *("" if number is None else f"{number:.6g}" for number in row)])
    return text.getvalue()


def _axes(axes: Sequence[str], cells: Sequence[Entry]) -> list[str]:
    return [axis for axis in axes if cells and axis in cells[0].point]


def _part(entry: Entry, axes: Sequence[str]) -> tuple[str, ...]:
    return tuple(entry.point[axis] for axis in axes)


def _cell(entry: Entry) -> str:
    if entry.ours is None:
        ours = "diverged" if entry.runs else "not run"
    else:
        ours = f"{entry.ours:.4f}" + (f" ± {entry.spread:.4f}" if entry.spread is not None else "")
        if entry.unbalanced and entry.balanced is not None:
            ours += f" (balanced {entry.balanced:.4f})"
        if entry.diverged:
            ours += f" ({entry.diverged} of {len(entry.runs)} diverged)"
        if len(entry.runs) < entry.wanted:
            ours += f" ({len(entry.runs)} of {entry.wanted} seeds)"
    if entry.paper is None:
        return ours
    difference = "" if entry.difference is None else f", {entry.difference:+.4f}"
    return f"{ours} / {entry.paper:.4f}{difference}"


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return float(np.mean(numbers)) if numbers else None
