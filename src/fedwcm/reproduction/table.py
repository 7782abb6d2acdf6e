"""Ours and the paper's number (`paper/NAME.csv`) in every cell, the best in bold; with all digits as CSV."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from fedwcm.experiment.records import Summary
from fedwcm.reports.statistics import Spread, spread_if_any
from fedwcm.reports.table_files import spread_numbers
from fedwcm.reproduction.presets import Cell, Preset
from fedwcm.reproduction.store import StoredRun
from fedwcm.utils.text import format_csv, format_markdown

Point = tuple[tuple[str, str], ...]

FOLDER = files("fedwcm.reproduction") / "paper"
VALUES = ("accuracy", "underlined")
"""The columns that are not part of a cell's address; the paper underlines what did not converge."""


def rows_of_paper(name: str) -> list[dict[str, str]]:
    """Return the rows of a file, or none if the paper prints no numbers there."""
    file = FOLDER / f"{name}.csv"
    if not file.is_file():
        return []
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


class PaperTable:
    """The accuracies of one of the paper's tables, by the axes that its file has."""

    def __init__(self, name: str) -> None:
        rows = rows_of_paper(name)
        self._axes = [axis for axis in (rows[0] if rows else {}) if axis not in VALUES]
        self._cells = {self._key(row): float(row["accuracy"]) for row in rows if "accuracy" in row}

    def accuracy(self, point: Mapping[str, str]) -> float | None:
        """Return what the paper has at this point; None where it has nothing."""
        return self._cells.get(self._key(point)) if all(axis in point for axis in self._axes) else None

    def _key(self, point: Mapping[str, str]) -> Point:
        return tuple((axis, _number(point[axis])) for axis in self._axes)


def _number(text: str) -> str:
    try:
        return f"{float(text):g}"
    except ValueError:
        return text


SYMBOLS = {"imbalance": "IF", "beta": "β"}
"""What the tables call an axis."""


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
    def accuracy(self) -> Spread | None:
        """The final accuracy over the seeds that have one."""
        return spread_if_any(run.final_accuracy for run in self.measured)

    @property
    def balanced(self) -> Spread | None:
        """The mean over the classes, which differs where the test set is unbalanced."""
        return spread_if_any(run.balanced_accuracy for run in self.measured)

    @property
    def unbalanced(self) -> bool:
        return any(run.summary.has_unbalanced_test_set for run in self.runs)

    @property
    def ours(self) -> float | None:
        """The mean final accuracy."""
        return None if self.accuracy is None else self.accuracy.mean


def entries(preset: Preset, runs: Sequence[tuple[Cell, StoredRun | None]]) -> list[Entry]:
    """Return one entry per point of the grid and method, in the order of the runs."""
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
    """Return the table as Markdown: ours (± over the seeds) and the paper's; our best at a place in bold.

    On an unbalanced test set the balanced accuracy comes first, unless the paper's accuracies stand beside.
    """
    rows, columns = (_axes(axes, cells) for axes in (preset.rows, preset.columns))
    best = _best(cells, led := led_by_classes(cells))
    across = list(dict.fromkeys(_part(entry, columns) for entry in cells))
    heads = [
        ", ".join(named_value(axis, value) for axis, value in zip(columns, part, strict=True)) for part in across
    ]
    lines = []
    for down in dict.fromkeys(_part(entry, rows) for entry in cells):
        by_column = {_part(entry, columns): entry for entry in cells if _part(entry, rows) == down}
        lines.append([*down, *(_cell(by_column[part], best, led) if part in by_column else "" for part in across)])
    titles = [*(SYMBOLS.get(axis, axis) for axis in rows), *(head or "accuracy" for head in heads)]
    return format_markdown(titles, lines)


def csv_text(cells: Sequence[Entry]) -> str:
    """Return the same with all digits, one line per cell."""
    axes = list(cells[0].point) if cells else []
    lines = [[*axes, "ours", "std", "balanced", "seeds", "wanted", "diverged", "paper", "difference"]]
    for entry in cells:
        mean, std, seeds = spread_numbers(entry.accuracy)
        balanced, *_ = spread_numbers(entry.balanced)
        difference = None if mean is None or entry.paper is None else mean - entry.paper
        numbers = [mean, std, balanced, seeds, entry.wanted, entry.diverged, entry.paper, difference]
        lines.append([*entry.point.values(), *("" if n is None else f"{n:.6g}" for n in numbers)])
    return format_csv(lines)


def _axes(axes: Sequence[str], cells: Sequence[Entry]) -> list[str]:
    """Return the axes that the runs have; that of the data sets only if there are several."""
    several = len({entry.point["dataset"] for entry in cells}) > 1
    return [axis for axis in axes if cells and axis in cells[0].point and (several or axis != "dataset")]


def named_value(axis: str, value: str) -> str:
    """Return the value of an axis as the tables call it."""
    return f"{SYMBOLS[axis]} {value}" if axis in SYMBOLS else value


def place_of(entry: Entry) -> Point:
    """Return where an entry stands, whatever its method."""
    return tuple((axis, value) for axis, value in entry.point.items() if axis != "method")


def led_by_classes(cells: Sequence[Entry]) -> bool:
    """Return whether the mean over the classes ranks the methods."""
    return any(entry.unbalanced for entry in cells) and all(entry.paper is None for entry in cells)


def _first(entry: Entry, led: bool) -> Spread | None:
    """Return the accuracy that ranks an entry: over the classes, or over all samples."""
    return entry.balanced if led else entry.accuracy


def _best(cells: Sequence[Entry], led: bool) -> dict[Point, float]:
    """Return our highest accuracy at every place that has several methods."""
    values: dict[Point, list[float]] = {}
    for entry in cells:
        if (first := _first(entry, led)) is not None:
            values.setdefault(place_of(entry), []).append(first.mean)
    return {place: max(each) for place, each in values.items() if len(each) > 1}


def _part(entry: Entry, axes: Sequence[str]) -> tuple[str, ...]:
    return tuple(entry.point[axis] for axis in axes)


def _cell(entry: Entry, best: Mapping[Point, float], led: bool) -> str:
    first = _first(entry, led)
    if first is None:
        ours = "diverged" if entry.runs else "not run"
    else:
        ours = f"**{first.mean:.3f}**" if first.mean == best.get(place_of(entry)) else f"{first.mean:.3f}"
        ours += f" ± {first.std:.3f}" if first.runs > 1 else ""
        if entry.unbalanced and (beside := _first(entry, not led)) is not None:
            ours += f" ({'accuracy' if led else 'balanced'} {beside.mean:.3f})"
        if entry.diverged:
            ours += f" ({entry.diverged} of {len(entry.runs)} diverged)"
        if len(entry.runs) < entry.wanted:
            ours += f" ({len(entry.runs)} of {entry.wanted} seeds)"
    return ours if entry.paper is None else f"{ours} / {entry.paper:.3f}"
