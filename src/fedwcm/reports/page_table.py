"""Tables as HTML: the results, a body of rows per task, sorted by script; and the view of a grid."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby

from fedwcm.reports.content import Table
from fedwcm.reports.sweep import Choice, Pivot, Sweep
from fedwcm.reports.table import LOWER_IS_BETTER, Row, marks_meaning
from fedwcm.reports.table_files import cell_text, diverged_mark, seeds_text, swept_columns


def sentence(text: str) -> str:
    """Return a sentence as HTML, with flags such as `--set local.lr=0.1` as code that stays on a line."""
    return re.sub(r"(?<!\S)\(?--[a-z][\w-]*(?: [\w.]+=[\w.]*\w| [\d.-]*\d)?", _code, escape(text))


def _code(match: re.Match[str]) -> str:
    flag = match[0].removeprefix("(")
    return match[0].removesuffix(flag) + f"<code>{flag}</code>"


def breakable(name: str) -> str:
    """Return a name as HTML that may break after its commas, square brackets and equals signs."""
    return re.sub(r"([,\[=])", r"\1<wbr>", escape(name))


JUDGED = (
    "The verdict comes from paired differences over shared seeds: t-test and interval at the same level, 95 % "
    "after Holm's correction."
)


def results(table: Table) -> str:
    """Return the section with the table."""
    meaning = f"In bold: {sentence(marks_meaning(table.rows))} A click on a heading sorts."
    if any(row.runs > 1 for row in table.rows):
        meaning = f"Mean ± standard deviation over the seeds. {JUDGED} {meaning}"
    bodies = "".join(_bodies(table))
    return f"""<section id="results"><h2>Results</h2>
<p class="facts">{meaning}</p>
<div class="reach"><label for="target">Rounds to reach an accuracy of</label>
<input id="target" type="number" min="0" max="1" step="0.01" inputmode="decimal">
<button type="button" data-table-csv>CSV</button></div>
<div class="scroll" tabindex="0" role="region" aria-label="Table of results">
<table class="results"><thead><tr>{"".join(_headings(table))}</tr></thead>{bodies}</table></div></section>"""


def _headings(table: Table) -> list[str]:
    first = next(iter(table.columns), None)
    columns = table.columns.items()
    numbers = [_heading(name, _first(key), "number", sorted_by=key == first) for key, name in columns]
    numbers.insert(1, _heading("against the best", "ascending", ""))
    numbers.insert(2, _heading("rounds to", "ascending", "number", " <span data-target></span>"))
    swept = [_heading(key, "ascending", "number") for key in swept_columns(table.rows)]
    return [_heading("method", "ascending", ""), *swept, *numbers, _heading("seeds", "descending", "number")]


def _heading(name: str, first: str, kind: str, more: str = "", *, sorted_by: bool = False) -> str:
    button = f'<button type="button">{escape(name)}{more}</button>'
    now = f' aria-sort="{first}"' if sorted_by else ""
    return f'<th scope="col" class="{kind}" data-first="{first}"{now}>{button}</th>'


def _first(key: str) -> str:
    """Return how a first click sorts: the better end first."""
    return "ascending" if key in LOWER_IS_BETTER else "descending"


def _bodies(table: Table) -> list[str]:
    tasks = [(name, list(rows)) for name, rows in groupby(table.rows, key=lambda row: row.task)]
    if len(tasks) == 1:
        return [_body(table.rows, table)]
    width = len(table.columns) + len(swept_columns(table.rows)) + 4
    return [_task_heading(name, width) + _body(rows, table) for name, rows in tasks]


def _task_heading(name: str, width: int) -> str:
    cell = f'<th scope="rowgroup" colspan="{width}"><span>{escape(name)}</span></th>'
    return f'<tbody class="task"><tr>{cell}</tr></tbody>'


def _body(rows: Sequence[Row], table: Table) -> str:
    return f"<tbody>{''.join(_row(row, table) for row in rows)}</tbody>"


def _row(row: Row, table: Table) -> str:
    bad = f' <span class="bad">{escape(diverged_mark(row).strip())}</span>' if row.diverged else ""
    name = f'<th scope="row" data-value="{escape(row.method)}">{breakable(row.method)}{bad}</th>'
    swept = [
        f'<td class="number" data-value="{escape(value)}">{escape(value)}</td>' for value in row.options.values()
    ]
    numbers = [_number(row, key) for key in table.columns]
    numbers.insert(1, f'<td class="verdict" data-value="{escape(row.verdict)}">{escape(row.verdict)}</td>')
    numbers.insert(2, '<td class="number reached"></td>')
    seeds = f'<td class="number" data-value="{row.runs}">{seeds_text(row)}</td>'
    return f'<tr data-method="{row.position}">{"".join([name, *swept, *numbers, seeds])}</tr>'


def _number(row: Row, key: str) -> str:
    value = row.values[key]
    if value is None:
        return '<td class="number">–</td>'
    mean = f"{value.mean:.3f}" if value.mean < 1000 else f"{value.mean:,.0f}"
    shown = f"<strong>{mean}</strong>" if key in row.best else mean
    spread = f' <span class="std">± {value.std:.3f}</span>' if value.runs > 1 else ""
    return f'<td class="number" data-value="{value.mean}">{shown}{spread}</td>'


def sweep_section(sweep: Sweep) -> str:
    """Return the section about the options that were varied."""
    best = f'<p class="facts">{sentence(sweep.chosen_by)}</p>{_choices(sweep.choices)}' if sweep.choices else ""
    return f"""<section id="sweep"><h2>What the options do</h2>{best}{_pivot(sweep.pivot)}</section>"""


def _choices(choices: Sequence[Choice]) -> str:
    tasks = len({choice.task for choice in choices}) > 1
    heads = [*(["task"] if tasks else []), "method", "best setting", "on the test data"]
    rows = [
        [*([choice.task] if tasks else []), choice.method, choice.setting, cell_text(choice.accuracy)]
        for choice in choices
    ]
    return plain_table("Best settings", heads, rows, numbers=1)


def _pivot(pivot: Pivot) -> str:
    heads = [*pivot.row_names, *(f"{pivot.column}={value}" for value in pivot.values)]
    rows = [[*names, *map(cell_text, cells)] for names, cells in pivot.rows]
    title = f'<p class="facts">{pivot.measure} by method and {escape(pivot.column)}; – where it diverged.</p>'
    return title + plain_table("Accuracy by option", heads, rows, numbers=len(pivot.values))


def plain_table(
    label: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int = 0, kind: str = ""
) -> str:
    """Return a table of texts: the first column names its rows, the last ones are numbers, others have a class."""
    kinds = [*[kind] * (len(heads) - numbers), *["number"] * numbers]
    head = "".join(
        f'<th scope="col" class="{k}">{escape(name)}</th>' for name, k in zip(heads, kinds, strict=True)
    )
    body = ""
    for first, *others in rows:
        cells = (f'<td class="{k}">{escape(text)}</td>' for text, k in zip(others, kinds[1:], strict=True))
        body += f'<tr><th scope="row">{breakable(first)}</th>{"".join(cells)}</tr>'
    return f"""<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">
<table class="options"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"""
