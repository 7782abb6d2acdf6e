"""The figures of a report as files for a paper: PDF, SVG and PNG, legible in black and white."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fedwcm.experiment.folder import slug
from fedwcm.reports.figures import Bar, Bars, Curve, Curves, Figure, Heatmap, Intervals, Scatter
from fedwcm.reports.styles import DASHES, HATCHES, LIGHT, MARKERS, highest, off_scale, upper_limit, visible_top
from fedwcm.reports.text import plain_number
from fedwcm.utils.extras import optional_module

FORMATS: dict[str, dict[str, None]] = {
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
    "png": {"Software": None},
}
"""What is written of each figure, and the metadata that would make two files of the same figure differ."""

STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "hatch.linewidth": 0.6,
    "hatch.color": "white",
    "savefig.dpi": 300,
    "svg.hashsalt": "fedwcm",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}
"""Letters large enough for one column, and text that stays text; the salt makes the SVG reproducible."""

NARROW, WIDE, HEIGHT = 4.2, 7.0, 2.9
"""Inches: a little more than a column of a two-column paper, the width of its page, and a height for both."""

MARKERS_ON_A_CURVE = 8
MOST_TICKS = 25
LETTERS_PER_INCH, LETTERS_BESIDE, ROW_HEIGHT = 16, 12, 0.18
"""Of a legend: its letters, the room for a line and a gap beside each name, and the height of a row in inches."""
AXIS_SHARE = 0.85
"""Share of the width of a figure that its horizontal axis takes."""
LONGEST_TICK = 28
"""Longest name at an axis, in characters."""
FEW_VALUES = 8
"""Values of an option up to which each has a tick."""
FAINTEST = 0.15
"""Where the colour scale of cells begins, from 0 to 1: the smallest value is not white, unlike an empty cell."""


def draw_figures(figures: Iterable[Figure], folder: Path, methods: Mapping[str, int]) -> list[Path]:
    """Draw figures in all `FORMATS`; one of several matrices becomes as many files, each named after its matrix.

    Args:
        figures: what to draw.
        folder: where to.
        methods: of figures with a series for each method, those that are drawn, and the style of each.
    """
    mpl = optional_module("matplotlib", "report", "drawing figures")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with mpl.rc_context(STYLE):
        for single in chain.from_iterable(map(_singles, figures)):
            paths += _save(_draw_figure(single, methods), folder / single.key)
    return paths


def draw_panels(panels: Iterable[Curves], folder: Path, methods: Mapping[str, int]) -> list[Path]:
    """Draw curves of the same number side by side, each under its title, with one legend for all."""
    mpl = optional_module("matplotlib", "report", "drawing figures")
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        from matplotlib.figure import Figure as Canvas

        figures = list(panels)
        canvas = Canvas(figsize=(max(NARROW, 0.75 * NARROW * len(figures)), HEIGHT), layout="constrained")
        row = canvas.subplots(1, len(figures), squeeze=False, sharey=True)[0]
        for axes, figure in zip(row, figures, strict=True):
            _curves(axes, figure, methods)
            axes.set_title(_plain(figure.title), fontsize=9)
            axes.label_outer()
        _legend(row[0])
        return _save(canvas, folder / figures[0].key)


def _save(canvas: Any, stem: Path) -> list[Path]:
    paths = [stem.with_name(f"{stem.name}.{suffix}") for suffix in FORMATS]
    for path, metadata in zip(paths, FORMATS.values(), strict=True):
        canvas.savefig(path, metadata=metadata)
        canvas.set_layout_engine("none")  # the other files keep the layout of the first
    return paths


def _singles(figure: Figure) -> Iterator[Figure]:
    """Return the figure; of several matrices, a figure for each."""
    if not isinstance(figure, Heatmap) or len(figure.matrices) == 1:
        yield figure
        return
    names: dict[str, int] = {}
    for matrix in figure.matrices:
        name = slug(matrix.name)
        names[name] = names.get(name, 0) + 1
        number = f"-{names[name]}" if names[name] > 1 else ""
        yield replace(figure, key=f"{figure.key}-{name}{number}", matrices=[matrix])


def _draw_figure(figure: Figure, methods: Mapping[str, int]) -> Any:
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(WIDE if figure.wide else NARROW, HEIGHT), layout="constrained")
    axes = canvas.add_subplot()
    if isinstance(figure, Curves):
        _legend(axes, _curves(axes, figure, methods))
    elif isinstance(figure, Bars):
        _bars(axes, figure, methods)
    elif isinstance(figure, Scatter):
        _scatter(axes, figure)
    elif isinstance(figure, Heatmap):
        _heatmap(axes, figure)
    elif isinstance(figure, Intervals):
        _intervals(axes, figure)
    return canvas


def _abbreviate(
    figure: Figure, methods: Mapping[str, int], series: Sequence[Curve | Bar]
) -> list[tuple[int, int]]:
    """Return which series to draw: their positions in the figure, and in the order of styles."""
    if not figure.by_method:
        return [(i, i if one.style is None else one.style) for i, one in enumerate(series)]
    return [(i, methods[one.name]) for i, one in enumerate(series) if one.name in methods]


def _curves(axes: Any, figure: Curves, methods: Mapping[str, int]) -> Any:
    """Draw the curves; return the axes on the right, if there are any."""
    right = axes.twinx() if figure.right_label else None
    shown = _abbreviate(figure, methods, figure.curves)
    for position, style in shown:
        curve = figure.curves[position]
        _curve(right if curve.right and right is not None else axes, figure, curve, style)
    axes.set(xlabel=figure.x_label, ylabel=figure.y_label, xscale="log" if figure.log_x else "linear")
    _ticks(axes, figure)
    if right is not None:
        right.set_ylabel(figure.right_label)
        right.spines["right"].set_visible(True)
        right.grid(False)
    if figure.mark is not None:
        axes.axhline(figure.mark, color="black", linewidth=0.8)
    if figure.bounds is not None and figure.bounds[1] is None:
        axes.set_ylim(bottom=figure.bounds[0])
    if upper_limit(figure) is not None:
        axes.set_ylim(top=1.05 * visible_top(figure, [figure.curves[position] for position, _ in shown]))
    return right


def _ticks(axes: Any, figure: Curves) -> None:
    """Return whole rounds, and the values of an option where they are few."""
    values = sorted({x for curve in figure.curves for x in curve.x})
    if figure.x_label == "round":
        axes.xaxis.get_major_locator().set_params(integer=True)
    elif len(values) <= FEW_VALUES:
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.set_xticks([], minor=True)


def _curve(axes: Any, figure: Curves, curve: Curve, style: int) -> None:
    limit = upper_limit(figure)
    beyond = np.inf if limit is None else 2 * limit  # just enough to leave the axes
    x, y = np.array(curve.x), np.minimum(np.array(curve.y, dtype=float), beyond)
    dash, step = DASHES[style % len(DASHES)], max(1, -(-len(x) // MARKERS_ON_A_CURVE))
    colour = LIGHT[style % len(LIGHT)]
    left = off_scale(figure).get(curve.name)
    axes.plot(
        x,
        y,
        label=_plain(curve.name if left is None else f"{curve.name} (off scale: up to {plain_number(left)})"),
        color=colour,
        linestyle=(0, [length / 2 for length in dash]) if dash else "-",
        marker=list(MARKERS)[style % len(MARKERS)],
        markevery=(style % step, step) if len(x) > 1 else None,
        markersize=4,
        linewidth=1.4,
    )
    if curve.point is not None:
        axes.plot(*curve.point, "o", color=colour, markersize=9, fillstyle="none", markeredgewidth=2)
    if curve.spread is not None:
        band = np.where(y < beyond, np.minimum(np.array(curve.spread, dtype=float), beyond), np.nan)
        low, high = _within(figure.bounds, y - band), _within(figure.bounds, y + band)
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    if limit is not None and highest(curve) > limit:
        first = next(number for number, value in zip(curve.x, curve.y, strict=True) if (value or 0.0) > limit)
        upwards: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False, "zorder": 5}
        axes.plot([first], [1.0], "^", color=colour, markersize=6, label="_off scale", **upwards)


def _within(bounds: tuple[float, float | None] | None, values: Any) -> Any:
    return values if bounds is None else np.clip(values, *bounds)


def _legend(axes: Any, right: Any = None) -> None:
    """Put the legend below the axes, where it hides nothing, and make the figure taller by it."""
    handles, labels = axes.get_legend_handles_labels()
    if right is not None:
        more = right.get_legend_handles_labels()
        handles, labels = handles + more[0], labels + more[1]
    if len(labels) < 2 and not any("off scale" in label for label in labels):
        return
    canvas = axes.figure
    room = int(canvas.get_figwidth() * LETTERS_PER_INCH)
    labels = ["\n".join(_lines(label, room - LETTERS_BESIDE)) for label in labels]
    longest = max(len(line) for label in labels for line in label.splitlines())
    columns = max(1, room // (longest + LETTERS_BESIDE))
    tallest = max(label.count("\n") + 1 for label in labels)
    rows = -(-len(labels) // columns) * tallest if columns > 1 else sum(label.count("\n") + 1 for label in labels)
    canvas.set_figheight(HEIGHT + ROW_HEIGHT * rows)
    canvas.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=3)


def _lines(name: str, room: int) -> list[str]:
    """Return the name in lines that fit, broken after its commas."""
    return [name] if len(name) <= room else textwrap.wrap(name.replace(",", ", "), room, break_on_hyphens=False)


def _bars(axes: Any, figure: Bars, methods: Mapping[str, int]) -> None:
    shown = _abbreviate(figure, methods, figure.bars)
    places, width = np.arange(len(figure.categories)), 0.8 / max(1, len(shown))
    for order, (position, style) in enumerate(shown):
        bar = figure.bars[position]
        axes.bar(
            places - 0.4 + width * (order + 0.5),
            np.array(bar.values, dtype=float),
            width,
            yerr=None if bar.spread is None else np.array(bar.spread, dtype=float),
            label=_plain(bar.name),
            color=LIGHT[style % len(LIGHT)],
            hatch=HATCHES[style % len(HATCHES)],
            edgecolor="white",
            linewidth=0.3,
            error_kw={"linewidth": 0.8, "capsize": 1.5},
        )
    axes.set(xlabel=figure.x_label, ylabel=figure.y_label)
    step = -(-len(figure.categories) // MOST_TICKS)
    names = [_tick(name) for name in figure.categories[::step]]
    crowded = sum(len(name) + 2 for name in names) > axes.figure.get_figwidth() * LETTERS_PER_INCH * AXIS_SHARE
    turned: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
    axes.set_xticks(places[::step], names, **turned)
    axes.grid(axis="x", visible=False)
    axes.tick_params(axis="x", length=0)
    if figure.bounds is not None:
        axes.set_ylim(figure.bounds)
    _legend(axes)


def _scatter(axes: Any, figure: Scatter) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    for order, series in enumerate(figure.series):
        marker = list(MARKERS)[order]
        axes.scatter(series.x, series.y, 28, color=LIGHT[order], marker=marker, label=series.name)
        if len(series.labels) <= 15:
            for x, y, label in zip(series.x, series.y, series.labels, strict=True):
                place = {"xytext": (0, 5), "textcoords": "offset points", "ha": "center"}
                axes.annotate(_plain(label), (x, y), fontsize=7, **place)
    axes.set_xscale("log")
    axes.invert_xaxis()
    axes.set(xlabel=figure.x_label, ylabel=figure.y_label)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    if figure.bounds is not None:
        axes.set_ylim(figure.bounds[0], figure.bounds[1] * 1.08)
    _legend(axes)


def _intervals(axes: Any, figure: Intervals) -> None:
    rows = np.arange(len(figure.row_labels))
    for place, series in enumerate(figure.series):
        means, lows, highs = (np.array(v, dtype=float) for v in (series.means, series.lows, series.highs))
        shifted = rows + 0.22 * (place - (len(figure.series) - 1) / 2)
        reach = np.array([means - lows, highs - means])
        look: dict[str, Any] = {"color": LIGHT[place], "fmt": list(MARKERS)[place], "markersize": 5, "capsize": 2}
        axes.errorbar(means, shifted, xerr=reach, label=series.name, **look)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(rows, [_tick(name) for name in figure.row_labels])
    axes.set(xlabel=figure.x_label, ylim=(len(rows) - 0.5, -0.5))
    _legend(axes)
    axes.figure.set_figheight(axes.figure.get_figheight() - HEIGHT + 1.0 + 0.35 * len(rows))


def _heatmap(axes: Any, figure: Heatmap) -> None:
    """Draw the first matrix under its name, as high as it needs."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap, LogNorm
    from matplotlib.ticker import LogFormatter

    cells = np.array([[np.nan if v is None else v for v in row] for row in figure.matrices[0].rows], dtype=float)
    bounds = figure.bounds or (None, None)
    scale = {"norm": LogNorm()} if figure.log else {"vmin": bounds[0], "vmax": bounds[1]}
    blues = ListedColormap(colormaps["Blues"](np.linspace(FAINTEST, 1, 256)))
    image = axes.imshow(
        cells, cmap=blues, aspect="equal" if figure.square else "auto", interpolation="nearest", **scale
    )
    canvas = axes.figure
    bar = canvas.colorbar(image, ax=axes, label=figure.value_label, pad=0.02, format="{x:g}")
    if figure.log:
        bar.ax.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))  # "20", not "2 × 10¹"
    axes.set(xlabel=figure.x_label, ylabel=figure.y_label)
    axes.set_title(_plain(figure.matrices[0].name), fontsize=9)
    axes.grid(False)
    for names, ticks in ((figure.column_labels, axes.set_xticks), (figure.row_labels, axes.set_yticks)):
        step = -(-len(names) // MOST_TICKS)
        ticks(range(0, len(names), step), [_tick(name) for name in names[::step]], fontsize=7)
    longest = max(len(_tick(name)) for name in figure.column_labels)
    upright = longest > (2 if figure.square else 4)
    if upright:
        axes.tick_params(axis="x", labelrotation=90)
    below = longest / LETTERS_PER_INCH if upright else 0.0
    canvas.set_figheight(NARROW * 0.85 if figure.square else min(6.0, 1.4 + 0.16 * len(figure.row_labels)) + below)


def _tick(name: str) -> str:
    """Return a name at an axis, cut if it is too long."""
    return _plain(name if len(name) <= LONGEST_TICK else f"{name[: LONGEST_TICK - 1].rstrip()}…")


def _plain(text: str) -> str:
    """Return a name with dollar signs escaped, which would start a formula."""
    return text.replace("$", r"\$")
