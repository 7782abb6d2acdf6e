"""The paper's printed numbers: `paper/NAME.csv`, typed from its tables and text."""

import csv
from collections.abc import Mapping
from importlib.resources import files

Key = tuple[tuple[str, str], ...]

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

    def _key(self, point: Mapping[str, str]) -> Key:
        return tuple((axis, _number(point[axis])) for axis in self._axes)


def _number(text: str) -> str:
    try:
        return f"{float(text):g}"
    except ValueError:
        return text
