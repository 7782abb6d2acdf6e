"""The view of a grid as HTML: the best setting of each method, and accuracy by method and options."""

from collections.abc import Sequence
from html import escape

from fedwcm.reports.markup import sentence
from fedwcm.reports.sweep import Choice, Pivot, Sweep
from fedwcm.reports.table_files import cell_text


def sweep_section(sweep: Sweep) -> str:
    """The section about the options that were varied."""
    best = f'<p class="facts">{sentence(sweep.chosen_by)}</p>{_choices(sweep.choices)}' if sweep.choices else ""
    return f"""<section id="sweep"><h2>What the options do</h2>{best}{_pivot(sweep.pivot)}</section>"""


def _choices(choices: Sequence[Choice]) -> str:
    tasks = len({choice.task for choice in choices}) > 1
    heads = [*(["task"] if tasks else []), "method", "best setting", "test accuracy"]
    rows = [
        [*([choice.task] if tasks else []), choice.method, choice.setting, cell_text(choice.accuracy)]
        for choice in choices
    ]
    return _table("Best settings", heads, rows, numbers=1)


def _pivot(pivot: Pivot) -> str:
    heads = [*pivot.row_names, *(f"{pivot.column}={value}" for value in pivot.values)]
    rows = [[*names, *map(cell_text, cells)] for names, cells in pivot.rows]
    title = f'<p class="facts">Test accuracy by method and {escape(pivot.column)}; – where it diverged.</p>'
    return title + _table("Accuracy by option", heads, rows, numbers=len(pivot.values))


def _table(label: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: int) -> str:
    """A plain table whose last columns are numbers."""
    first_number = len(heads) - numbers

    def kind(position: int) -> str:
        return "number" if position >= first_number else ""

    def cell(position: int, text: str) -> str:
        if position == 0:
            return f'<th scope="row">{escape(text)}</th>'
        return f'<td class="{kind(position)}">{escape(text)}</td>'

    head = "".join(f'<th scope="col" class="{kind(i)}">{escape(name)}</th>' for i, name in enumerate(heads))
    body = "".join(f"<tr>{''.join(cell(i, text) for i, text in enumerate(row))}</tr>" for row in rows)
    return f"""<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">
<table class="options"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"""
