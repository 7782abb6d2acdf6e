"""Results in a notebook: data frames, plots, HTML. pandas and matplotlib are imported where needed."""

import io
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, cast

from fedwcm.core.checks import unknown
from fedwcm.experiment.records import RoundRecord
from fedwcm.experiment.trackers import scalars_of
from fedwcm.reports.figures import Curve
from fedwcm.reports.page_table import breakable
from fedwcm.reports.series import Reader
from fedwcm.reports.styles import LIGHT
from fedwcm.utils.extras import optional_module

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


EXTRA = "notebook"
"""The extra of this package that brings pandas, matplotlib and the widgets of progress bars."""


def history_frame(history: Sequence[RoundRecord]) -> "pd.DataFrame":
    """Return a row per evaluated round, a column per number, the rounds as the index."""
    pandas = optional_module("pandas", EXTRA, "history_frame()")
    frame: pd.DataFrame = pandas.DataFrame([scalars_of(record.to_json()) for record in history])
    return frame.astype({"round": int}).set_index("round") if history else frame


def csv_frame(text: str) -> "pd.DataFrame":
    """Read CSV as a DataFrame: only empty cells are missing values, not those that say `NA` or `none`."""
    pandas = optional_module("pandas", EXTRA, "table()")
    frame: pd.DataFrame = pandas.read_csv(io.StringIO(text), keep_default_na=False, na_values=[""])
    return frame


def known_metric(metric: str, history: Sequence[RoundRecord]) -> None:
    """Raise an error that names the metrics that were measured if this is none of them."""
    measured = {key for record in history for key in scalars_of(record.to_json())} - {"round"}
    if metric not in measured:
        raise unknown("metric", metric, measured)


def flat_metric(metric: str) -> Reader:
    """Return a reader of the number under a flat name, as in `history_frame`."""
    return lambda record: scalars_of(record.to_json()).get(metric)


def history_curve(name: str, history: Sequence[RoundRecord], metric: str) -> Curve:
    """Return a number over the rounds in which it was measured."""
    read = flat_metric(metric)
    points = [(float(record.round), value) for record in history if (value := read(record)) is not None]
    return Curve(name, [x for x, _ in points], [y for _, y in points])


def plot_curves(curves: Sequence[Curve], metric: str, ax: "Axes | None", **style: Any) -> "Axes":
    """Draw curves over rounds, with bands of a standard deviation, and return the axes."""
    pyplot = optional_module("matplotlib.pyplot", EXTRA, "plot()")
    axes: Axes = pyplot.subplots()[1] if ax is None else ax
    for curve in curves:
        (line,) = axes.plot(curve.x, cast(Any, curve.y), **{"label": curve.name, **style})
        if curve.spread is not None:
            reach = list(zip(curve.y, curve.spread, strict=True))
            low, high = ([(y or 0.0) + sign * (s or 0.0) for y, s in reach] for sign in (-1, 1))
            axes.fill_between(curve.x, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set(xlabel="round", ylabel=metric.replace("_", " "))
    axes.legend()
    return axes


WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 460, 200, 42, 34, 10
"""Pixels of a figure: its size, and the margins for ticks and labels."""

DASHES = ("", "6 3", "2 2")
"""By which curves of the same colour differ."""

CELL = "padding:2px 8px;text-align:{};border:0"
NUMBER = re.compile(r"[\d.]+( ± [\d.]+)?")
"""What stays on one line in a cell."""


def facts_text(facts: Mapping[str, str]) -> str:
    """Return a line per fact."""
    width = max(map(len, facts))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in facts.items())


def facts_html(facts: Mapping[str, str]) -> str:
    """Return a row per fact."""
    return _table([(_cell(name, "left", "th"), _cell(value, "left")) for name, value in facts.items()])


def table_html(heads: Sequence[str], rows: Sequence[Sequence[str]], bold: Sequence[Sequence[bool]]) -> str:
    """Return a table of texts; the first column is left-aligned, numbers are not."""
    lines = [[_cell(head, "right" if i else "left", "th") for i, head in enumerate(heads)]]
    for row, marks in zip(rows, bold, strict=True):
        cells = zip(row, marks, strict=True)
        lines.append([_cell(text, "right" if i else "left", bold=mark) for i, (text, mark) in enumerate(cells)])
    return _table(lines)


def _cell(text: str, align: str, tag: str = "td", bold: bool = False) -> str:
    inside = f"<b>{breakable(text)}</b>" if bold else breakable(text)
    whole = ";white-space:nowrap" if NUMBER.fullmatch(text) else ""
    return f'<{tag} style="{CELL.format(align)}{whole}">{inside}</{tag}>'


def _table(rows: Sequence[Sequence[str]]) -> str:
    body = "\n".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return f'<div style="overflow-x:auto"><table>\n{body}\n</table></div>\n'


def figure(curves: Sequence[Curve], label: str) -> str:
    """Return curves over rounds, with a legend for several; text and axes in the colour of the page's text."""
    shown = [curve for curve in curves if curve.x]
    values = [y for curve in shown for y in curve.y if y is not None]
    if not values:
        return ""
    low, high = math.floor(10 * min(values)) / 10, math.ceil(10 * max(values)) / 10
    scale = _Scale(min(curve.x[0] for curve in shown), max(curve.x[-1] for curve in shown), low, high)
    names = [escape(curve.name) for curve in shown] if len(shown) > 1 else []
    legend = "".join(_legend(i, name) for i, name in enumerate(names))
    drawn = "\n".join(_path(i, curve, scale) for i, curve in enumerate(shown))
    height = HEIGHT + 16 * len(names)
    title = escape(label.replace("_", " "))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{title} over rounds" '
        f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'style="max-width:100%;height:auto" fill="currentColor" font-family="sans-serif" font-size="11">\n'
        f"{_axes(scale, title)}\n{drawn}\n{legend}</svg>\n"
    )


class _Scale:
    """From rounds and values to pixels."""

    def __init__(self, first: float, last: float, low: float, high: float) -> None:
        self.first, self.last = first, max(last, first + 1)
        self.low, self.high = low, high if high > low else low + 0.1

    def x(self, number: float) -> float:
        return round(LEFT + (number - self.first) / (self.last - self.first) * (WIDTH - LEFT - 16), 1)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP), 1)


def _axes(scale: _Scale, title: str) -> str:
    middle = (scale.low + scale.high) / 2
    parts = []
    for value in (scale.low, middle, scale.high):
        y = scale.y(value)
        parts.append(f'<path d="M{LEFT} {y}H{WIDTH - 16}" stroke="currentColor" stroke-opacity=".2"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{value:.3g}</text>')
    for number, anchor in ((scale.first, "start"), (scale.last, "end")):
        parts.append(f'<text x="{scale.x(number)}" y="{HEIGHT - 18}" text-anchor="{anchor}">{number:.0f}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH) // 2}" y="{HEIGHT - 4}" text-anchor="middle">{title}, by round</text>')
    return "\n".join(parts)


def _path(number: int, curve: Curve, scale: _Scale) -> str:
    points = [(scale.x(x), scale.y(y)) for x, y in zip(curve.x, curve.y, strict=True) if y is not None]
    if len(points) == 1:
        return f'<circle cx="{points[0][0]}" cy="{points[0][1]}" r="3" {_stroke(number)}/>'
    line = "L".join(f"{x} {y}" for x, y in points)
    return f'<path d="M{line}" {_stroke(number)}/>'


def _legend(number: int, name: str) -> str:
    y = HEIGHT + 8 + 16 * number
    line = f'<path d="M{LEFT} {y - 4}h24" {_stroke(number)}/>'
    return f'{line}<text x="{LEFT + 30}" y="{y}">{name}</text>\n'


def _stroke(number: int) -> str:
    round_, colour = divmod(number, len(LIGHT) - 1)  # the last is almost black: not seen on a dark page
    dash = DASHES[round_ % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'fill="none" stroke="{LIGHT[colour]}" stroke-width="2"{dashed}'
