"""The table of a comparison: one row per method, mean ± standard deviation over its seeds."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedwcm.metrics.classification import SHOTS
from fedwcm.runs.records import Summary

COLUMNS = {
    "selected_accuracy": "selected",
    "val_accuracy": "validation",
    "final_accuracy": "final",
    "last_mean_accuracy": "last 10 evaluations",
    "best_accuracy": "best",
    "many": "many",
    "medium": "medium",
    "few": "few",
    "macro_f1": "macro F1",
    "client_mean": "clients",
    "client_worst_decile": "worst decile",
    "client_std": "std of clients",
    "seconds_per_round": "s/round",
}

OPTIONAL = (*SHOTS, "selected_accuracy", "val_accuracy", "client_mean", "client_worst_decile", "client_std")
"""Columns that some runs do not have."""


@dataclass(frozen=True)
class Row:
    """A method's runs: for each column the mean and the sample standard deviation (0 for one run)."""

    label: str
    runs: int
    diverged: int
    values: dict[str, tuple[float, float] | None]


@dataclass(frozen=True)
class RunNumbers:
    """What one run adds to its row: a number per column, None where the run has none."""

    diverged: bool
    values: Mapping[str, float | None]


def run_numbers(summary: Summary) -> RunNumbers:
    """The numbers of a finished run."""
    return RunNumbers(summary.diverged is not None, {column: summary.number(column) for column in COLUMNS})


def rows_of(runs: Mapping[str, Sequence[RunNumbers]], columns: Iterable[str] = COLUMNS) -> list[Row]:
    """One row per label, in the given order."""
    return [
        Row(
            label,
            len(members),
            sum(run.diverged for run in members),
            {column: _spread([run.values.get(column) for run in members]) for column in columns},
        )
        for label, members in runs.items()
    ]


def best_of(rows: Sequence[Row], columns: Iterable[str]) -> dict[str, float]:
    """The best mean of each column over the rows without a diverged run; empty for a single row."""
    best = {}
    for column in columns:
        means = [value[0] for row in rows if (value := row.values[column]) and not row.diverged]
        if len(means) > 1:
            best[column] = min(means) if column.endswith(("_per_round", "_std")) else max(means)
    return best


def shown_columns(rows: Sequence[Row], columns: Mapping[str, str] = COLUMNS) -> dict[str, str]:
    """The columns without those that no row has: shot groups on nearly balanced data, the selected accuracy."""
    return {
        key: name for key, name in columns.items() if key not in OPTIONAL or any(row.values[key] for row in rows)
    }


def markdown_table(rows: Sequence[Row]) -> str:
    """The table as Markdown, aligned so that it also reads well as plain text."""
    columns = shown_columns(rows)
    cells = [["method", *columns.values(), "runs"]]
    for row in rows:
        numbers = [_cell(row.values[column], row.runs > 1) for column in columns]
        runs = f"{row.runs}" + (f" ({row.diverged} diverged)" if row.diverged else "")
        cells.append([row.label, *numbers, runs])
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in cells]
    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def csv_table(rows: Sequence[Row]) -> str:
    """The table with full precision: two columns, mean and standard deviation, for each number."""
    text, columns = io.StringIO(), shown_columns(rows)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", *[f"{c}_{part}" for c in columns for part in ("mean", "std")], "runs", "diverged"])
    for row in rows:
        numbers = [value for column in columns for value in row.values[column] or ("", "")]
        writer.writerow([row.label, *numbers, row.runs, row.diverged])
    return text.getvalue()


def _spread(values: Sequence[float | None]) -> tuple[float, float] | None:
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    return float(np.mean(numbers)), float(np.std(numbers, ddof=1)) if len(numbers) > 1 else 0.0


def _cell(value: tuple[float, float] | None, spread: bool) -> str:
    if value is None:
        return "–"
    return f"{value[0]:.3f} ± {value[1]:.3f}" if spread else f"{value[0]:.3f}"
