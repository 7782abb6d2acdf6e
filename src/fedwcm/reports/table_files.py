"""The table of a comparison as text: Markdown, CSV and LaTeX."""

import re
from collections.abc import Sequence

from fedwcm.reports.statistics import Spread
from fedwcm.reports.table import COSTS, Row, columns_of
from fedwcm.utils.text import format_csv

LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
}
LATEX |= {char: f"\\{char}" for char in "&%$#_{}"}


def name_of(row: Row) -> str:
    """Return the name of a row, with a mark if runs of it diverged."""
    return row.method + diverged_mark(row)


def seeds_text(row: Row) -> str:
    """Say how many runs there are and, unless all have finished, how many have."""
    return str(row.runs) if row.finished == row.runs else f"{row.finished} of {row.runs}"


def diverged_mark(row: Row) -> str:
    """Return what follows the name of a row of which runs diverged."""
    if not row.diverged:
        return ""
    return " (diverged)" if row.diverged == row.runs else f" ({row.diverged} of {row.runs} diverged)"


def cell_text(value: Spread | None) -> str:
    """Return mean ± standard deviation, to three digits after the point; the mean alone of one run."""
    if value is None:
        return "–"
    mean = f"{value.mean:.3f}" if abs(value.mean) < 1000 else f"{value.mean:.3g}"
    return f"{mean} ± {value.std:.3f}" if value.runs > 1 else mean


def markdown_table(rows: Sequence[Row]) -> str:
    """Return the table as Markdown, aligned so that it also reads well as plain text; the best in bold."""
    columns = columns_of(rows)
    cells = [["method", *swept_columns(rows), *columns.values(), "seeds", "against the best"]]
    for row in rows:
        numbers = [_bold(cell_text(row.values[key]), key in row.best) for key in columns]
        cells.append([name_of(row), *row.options.values(), *numbers, seeds_text(row), row.verdict])
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in cells]
    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def csv_table(rows: Sequence[Row]) -> str:
    """Return the table with full precision: mean, standard deviation and number of runs in columns of their own.

    The standard deviation of one run is empty, as is what no run has.
    """
    columns = columns_of(rows)
    parts = [f"{column}_{part}" for column in columns for part in ("mean", "std", "n")]
    lines: list[list[object]] = [
        ["method", *swept_columns(rows), *parts, "runs", "finished", "diverged", "verdict"]
    ]
    for row in rows:
        numbers = [number for column in columns for number in spread_numbers(row.values[column])]
        counts = row.runs, row.finished, row.diverged
        lines.append([row.method, *row.options.values(), *numbers, *counts, row.verdict])
    return format_csv(lines)


def latex_table(rows: Sequence[Row]) -> str:
    r"""Return the table for a paper, with the rules of the package booktabs; without costs."""
    columns = {key: name for key, name in columns_of(rows).items() if key not in COSTS}
    swept = swept_columns(rows)
    head = " & ".join(map(latex, ["method", *swept, *columns.values()]))
    lines = [r"% \usepackage{booktabs}", rf"\begin{{tabular}}{{l{'r' * (len(swept) + len(columns))}}}"]
    lines += [r"\toprule", rf"{head} \\"]
    task = None
    for row in rows:
        if row.task != task:
            lines.append(r"\midrule")
            task = row.task
        numbers = [_latex_bold(latex(cell_text(row.values[key])), key in row.best) for key in columns]
        lines.append(" & ".join([*map(latex, [name_of(row), *row.options.values()]), *numbers]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def swept_columns(rows: Sequence[Row]) -> list[str]:
    """Return the options that a grid varied: all rows have the same."""
    return list(rows[0].options) if rows else []


def spread_numbers(value: Spread | None) -> tuple[float | None, float | None, int]:
    """Return mean, standard deviation and number of runs; no standard deviation of one run."""
    if value is None:
        return None, None, 0
    return value.mean, value.std if value.runs > 1 else None, value.runs


def _bold(text: str, best: bool) -> str:
    return f"**{text}**" if best else text


def _latex_bold(text: str, best: bool) -> str:
    return rf"\textbf{{{text}}}" if best else text


def latex(text: str) -> str:
    """Return text with what LaTeX would read as commands escaped."""
    return re.sub("[" + re.escape("".join(LATEX)) + "]", lambda match: LATEX[match[0]], text)
