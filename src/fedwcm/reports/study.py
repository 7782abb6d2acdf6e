"""What a study prints: a table for each number, methods × data, and figures with a panel for each data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedwcm.reports.figures import Curves
from fedwcm.reports.load import MethodRuns
from fedwcm.reports.paper import draw_panels
from fedwcm.reports.series import curves, metric
from fedwcm.reports.table import OWN, rows_of, tasks_of
from fedwcm.reports.table_files import cell_text, latex, spread_numbers
from fedwcm.utils.text import format_csv, format_markdown

Groups = Mapping[str, Sequence[MethodRuns]]
"""The runs of a study by the data."""

POINTS = 200
"""Of a curve, at most."""

LEADS = "better than every other method: paired t-test over the seeds, corrected for their number (Holm), 5 %"


@dataclass(frozen=True)
class Cell:
    """A method on one of the data: mean and standard deviation, and what is marked.

    Args:
        best: the highest mean of the column, or equivalent to it.
        leads: better than every other method, beyond doubt.
    """

    text: str
    best: bool
    leads: bool


def cells_of(groups: Groups, column: str) -> dict[str, dict[str, Cell]]:
    """Return the cells of a table by method and data."""
    cells: dict[str, dict[str, Cell]] = {}
    for data, own in groups.items():
        (task,) = tasks_of(own)
        against = task.against_best(column)
        leader = against[0].method if against and all(pair.verdict == "better" for pair in against) else None
        rows = {row.label: row for row in rows_of(own)}
        for label, row in ((group.label, rows[group.label]) for group in own):
            if column not in row.values:
                raise ValueError(f"tables: no run has {column!r}; known are {', '.join(row.values)}")
            text = "diverged" if row.diverged else cell_text(row.values[column])
            leads = label == leader and not column.startswith(OWN)
            cells.setdefault(label, {})[data] = Cell(text, column in row.best, leads)
    return cells


def study_markdown(groups: Groups, columns: Sequence[str]) -> str:
    """Return a table for each column."""
    lines = []
    for column in columns:
        cells = cells_of(groups, column)
        rows = ([method, *(_markdown(own[data]) for data in groups)] for method, own in cells.items())
        lines += [f"## {_title(column)}", "", format_markdown(["", *groups], rows), ""]
    return "\n".join([*lines, f"Bold: the highest mean, and what is equivalent to it. *: {LEADS}.", ""])


def study_latex(groups: Groups, columns: Sequence[str]) -> str:
    """Return the tables for a paper, with the rules of the package booktabs."""
    lines = [r"% \usepackage{booktabs}"]
    for column in columns:
        lines += [f"% {_title(column)}", rf"\begin{{tabular}}{{l{'c' * len(groups)}}}", r"\toprule"]
        lines += [" & ".join(["Method", *map(latex, groups)]) + r" \\", r"\midrule"]
        for method, own in cells_of(groups, column).items():
            lines.append(" & ".join([latex(method), *(_latex(own[data]) for data in groups)]) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join([*lines, f"% Bold: the highest mean, and what is equivalent to it. *: {LEADS}.", ""])


def study_csv(groups: Groups, columns: Sequence[str]) -> str:
    """Return mean, standard deviation and number of runs of every cell, in full."""
    lines: list[list[object]] = [["measure", "method", "data", "mean", "std", "runs", "best", "leads"]]
    for column in columns:
        cells = cells_of(groups, column)
        for data, own in groups.items():
            for row in rows_of(own):
                numbers, cell = spread_numbers(row.values[column]), cells[row.label][data]
                lines.append([column, row.label, data, *numbers, cell.best, cell.leads])
    return format_csv(lines)


def study_figures(groups: Groups, numbers: Sequence[str], folder: Path) -> list[Path]:
    """Draw each number over the rounds: a panel for each data, and one colour for each method in all."""
    methods = dict.fromkeys(group.label for own in groups.values() for group in own)
    styles = {label: place for place, label in enumerate(methods)}
    return [path for number in numbers for path in draw_panels(_panels(groups, number), folder, styles)]


def _panels(groups: Groups, number: str) -> Iterator[Curves]:
    for data, own in groups.items():
        lines = curves(own, metric(*number.split(".", 1)), POINTS)
        if not lines:
            raise ValueError(f"figures: no round has {number!r}; known are the keys of metrics.jsonl")
        yield Curves(key=number, title=data, caption="", y_label=_title(number), curves=lines, by_method=True)


def _title(column: str) -> str:
    return column.removeprefix(OWN).replace("_", " ")


def _markdown(cell: Cell) -> str:
    return (f"**{cell.text}**" if cell.best else cell.text) + ("\\*" if cell.leads else "")


def _latex(cell: Cell) -> str:
    text = latex(cell.text)
    return (rf"\textbf{{{text}}}" if cell.best else text) + ("$^{*}$" if cell.leads else "")
