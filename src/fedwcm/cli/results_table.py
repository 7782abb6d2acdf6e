"""A comparison in the terminal: the columns of its table that fit, bars per class, the verdict."""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedwcm.cli.common import PADDING, fitting_columns
from fedwcm.reports.comparison_figures import class_bars
from fedwcm.reports.load import MethodRuns
from fedwcm.reports.statistics import FEW_SEEDS
from fedwcm.reports.table import Row, columns_of, marks_meaning
from fedwcm.reports.table_files import cell_text, diverged_mark, swept_columns
from fedwcm.utils.text import bar

if TYPE_CHECKING:
    from fedwcm.api.comparison_result import Comparison

NAME_WIDTH, NAME_SHARE = 40, 3
"""Characters of a method's name up to which it is not wrapped, and how many times they must fit into the width."""

HEADING, VERDICT = "method", "against the best"

MOST_BARS, MOST_CLASSES = 4, 12
"""Methods, the best first, and classes, the rarest, whose accuracies are drawn."""


def print_comparison(comparison: "Comparison", screen: Console) -> None:
    """Print the table, the accuracy of the classes, the verdict, where the report is and what to type next."""
    from fedwcm.reports.warnings import rising_labels

    print_results(comparison.rows, screen, f"{comparison.folder}/table.csv")
    print_classes(comparison.groups, [row.label for row in comparison.rows], screen)
    screen.print()
    for text in comparison.headline:
        first, stop, rest = text.partition(". ")
        screen.print(Text(first + stop, style="bold green").append(Text(rest, style="not bold default")))
    for text in rising_labels(comparison.groups):
        screen.print(Text(text, style="yellow"))
    screen.print(f"\nreport: {comparison.report or comparison.folder}", soft_wrap=True, markup=False)
    screen.print(Text(_next(comparison), style="dim"), soft_wrap=True)


def _next(comparison: "Comparison") -> str:
    best = next(
        (runs[0].folder for label, runs in comparison.runs.items() if label == comparison.rows[0].label), ""
    )
    seeds = max(row.runs for row in comparison.rows)
    lines = [f"next:   fedwcm evaluate {best}  # the best model, class by class"] if best else []
    if seeds < FEW_SEEDS:
        lines.append(f"        the same command with --seeds 0-{FEW_SEEDS - 1}: a verdict needs more than {seeds}")
    return "\n".join([*lines, f"        fedwcm report {comparison.folder} --figures figures  # PDF, SVG and PNG"])


def print_classes(groups: Sequence[MethodRuns], ranked: Sequence[str], screen: Console) -> None:
    """Print a bar per class and method, from the most frequent class to the rarest; nothing without classes."""
    alike = len({group.runs[0].classes for group in groups}) == 1 and all(
        any(g.runs[0].train_counts) for g in groups
    )
    figure = class_bars(groups) if alike else None
    if figure is None:
        return
    series = {one.name: one.values for one in figure.bars}
    shown = [label for label in ranked if label in series][:MOST_BARS]
    table = Table(box=None, pad_edge=False, title_justify="left", padding=(0, 2, 0, 0))
    table.add_column("class, share", no_wrap=True)
    width = min(20, (min(screen.width, 120) - 24) // len(shown) - 8) if shown else 0
    for label in shown:
        table.add_column(label, no_wrap=True, overflow="ellipsis", max_width=max(width + 6, 8))
    for place in range(max(0, len(figure.categories) - MOST_CLASSES), len(figure.categories)):
        values = [series[label][place] for label in shown]
        best = max((value for value in values if value is not None), default=None)
        table.add_row(figure.categories[place], *(_class_bar(value, width, value == best) for value in values))
    left_out = len(figure.categories) - MOST_CLASSES
    which = f", the rarest {MOST_CLASSES} classes" if left_out > 0 else ""
    screen.print(f"\nAccuracy per class, from head to tail{which}:", style="bold")
    screen.print(table)


def _class_bar(value: float | None, width: int, best: bool) -> Text:
    if value is None:
        return Text("–")
    drawn = Text(f"{value:.3f}", style="bold" if best else "")
    return drawn.append(" " + bar(value, width) if width > 3 else "", style="green" if best else "cyan")


def print_results(rows: Sequence[Row], screen: Console, table_file: str) -> None:
    """Print a table per task, sorted; columns without room are named below, with the file that has them."""
    columns = columns_of(rows)
    fitting = _fitting(rows, columns, screen.width)
    for task, members in groupby(rows, key=lambda row: row.task):
        screen.print(_table(list(members), fitting, swept_columns(rows), task, _name_width(rows, screen.width)))
    left_out = [name for key, name in columns.items() if key not in fitting]
    marks = f"Bold and *: {marks_meaning(rows)}"
    if left_out:
        marks += f" Not shown for lack of room: {', '.join(left_out)}; {table_file} has all."
    screen.print(marks, style="dim")


def _table(rows: Sequence[Row], columns: dict[str, str], swept: Sequence[str], task: str, width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=task or None, title_justify="left", pad_edge=False)
    table.add_column(HEADING, overflow="fold", max_width=width)
    for heading in (*swept, *columns.values()):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(VERDICT, overflow="fold")
    for row in rows:
        name = Text(row.method).append(diverged_mark(row), style="red")
        table.add_row(name, *row.options.values(), *(_cell(row, key) for key in columns), row.verdict)
    return table


def _cell(row: Row, key: str) -> Text:
    best = key in row.best
    return Text(cell_text(row.values[key]) + ("*" if best else " "), style="bold" if best else "")


def _fitting(rows: Sequence[Row], columns: dict[str, str], width: int) -> dict[str, str]:
    """Return the first columns that fit beside the names, the swept options and the verdict."""
    names = _name_width(rows, width)
    swept = [max(len(key), *(len(row.options[key]) for row in rows)) for key in swept_columns(rows)]
    verdict = min(30, max(len(VERDICT), *(len(row.verdict) for row in rows)))
    left = width - sum(size + PADDING for size in (names, *swept, verdict))
    cells = {heading: [f"{cell_text(row.values[key])} " for row in rows] for key, heading in columns.items()}
    fitting = fitting_columns(cells, left)
    return {key: heading for key, heading in columns.items() if heading in fitting}


def _name_width(rows: Sequence[Row], width: int) -> int:
    longest = max(len(HEADING), *(len(row.method + diverged_mark(row)) for row in rows))
    return min(longest, NAME_WIDTH, max(12, width // NAME_SHARE))
