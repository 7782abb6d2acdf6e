"""The table of a comparison in the terminal: the columns that fit, the best marked."""

from collections.abc import Sequence
from itertools import groupby

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedwcm.reports.table import Row, columns_of
from fedwcm.reports.table_files import cell_text, diverged_mark, swept_columns

PADDING = 3
"""Characters between two columns."""

NAME_WIDTH, NAME_SHARE = 40, 3
"""Characters of a method's name up to which it is not wrapped, and how many times they must fit into the width."""

HEADING, VERDICT = "method", "against the best"


def print_results(rows: Sequence[Row], screen: Console, table_file: str) -> None:
    """Print a table per task, sorted; columns without room are named below, with the file that has them."""
    columns = columns_of(rows)
    fitting = _fitting(rows, columns, screen.width)
    for task, members in groupby(rows, key=lambda row: row.task):
        screen.print(_table(list(members), fitting, swept_columns(rows), task, _name_width(rows, screen.width)))
    left_out = [name for key, name in columns.items() if key not in fitting]
    marks = "Bold and *: the best, and what cannot be told apart from it."
    if all(row.runs == 1 for row in rows):
        marks = "Bold and *: the best of a column; one seed allows no verdict."
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
        table.add_row(_name(row), *row.options.values(), *(_cell(row, key) for key in columns), row.verdict)
    return table


def _name(row: Row) -> Text:
    return Text(row.method).append(diverged_mark(row), style="red")


def _cell(row: Row, key: str) -> Text:
    best = key in row.best
    return Text(cell_text(row.values[key]) + ("*" if best else " "), style="bold" if best else "")


def _fitting(rows: Sequence[Row], columns: dict[str, str], width: int) -> dict[str, str]:
    """The first columns that fit beside the names, the swept options and the verdict."""
    names = _name_width(rows, width)
    swept = [max(len(key), *(len(row.options[key]) for row in rows)) for key in swept_columns(rows)]
    verdict = min(30, max(len(VERDICT), *(len(row.verdict) for row in rows)))
    left = width - sum(size + PADDING for size in (names, *swept, verdict))
    fitting: dict[str, str] = {}
    for key, heading in columns.items():
        left -= PADDING + max(len(heading), *(len(cell_text(row.values[key])) + 1 for row in rows))
        if left < 0 and fitting:
            break
        fitting[key] = heading
    return fitting


def _name_width(rows: Sequence[Row], width: int) -> int:
    longest = max(len(HEADING), *(len(row.method + diverged_mark(row)) for row in rows))
    return min(longest, NAME_WIDTH, max(12, width // NAME_SHARE))
