"""The figures of a report as files for a paper: PNG and SVG, legible in black and white."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedwcm.reports.figures import Bars, Curves, Figure, Heatmap, Scatter
from fedwcm.reports.report import ReportContent

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b0508a", "#e69f00", "#56b4e9", "#1b1f24")
"""Okabe and Ito's palette, which colour-blind readers can tell apart, in the order of the page."""
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.4)), (0, (6, 2, 1, 2)), (0, (3, 1.5, 3, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P")
HATCHES = ("", "///", "...", "\\\\\\", "---")

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
}
"""Letters large enough for one column; the salt makes the SVG reproducible."""

NARROW, WIDE, HEIGHT = 4.2, 7.0, 2.9
"""Inches: a little more than a column of a two-column paper, the width of its page, and a height for both."""

MARKERS_ON_A_CURVE = 8
MOST_TICKS = 25
FEW_LABELS, SHORT_LABEL = 5, 24
"""Names, and letters in a name, up to which the legend fits among the curves."""
LETTERS_PER_INCH, ROW_HEIGHT = 16, 0.18
"""Of a legend."""


def draw_figures(content: ReportContent, folder: Path) -> list[Path]:
    """Draw every figure of a report as `KEY.png` and `KEY.svg`, with the methods that the page shows at first."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'fedwcm[report]'") from error
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with mpl.rc_context(cast(Any, STYLE)):
        for figure in content.figures:
            drawn = _drawn(figure, content)
            for suffix, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
                paths.append(folder / f"{figure.key}.{suffix}")
                drawn.savefig(paths[-1], metadata=metadata)
                drawn.set_layout_engine("none")  # the second file keeps the layout of the first
    return paths


def _drawn(figure: Figure, content: ReportContent) -> Any:
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(WIDE if figure.wide else NARROW, HEIGHT), layout="constrained")
    axes = canvas.add_subplot()
    if isinstance(figure, Curves):
        _curves(axes, figure, content)
    elif isinstance(figure, Bars):
        _bars(axes, figure, content)
    elif isinstance(figure, Scatter):
        _scatter(axes, figure)
    elif isinstance(figure, Heatmap):
        _heatmap(axes, figure)
    return canvas


def _shown(figure: Figure, content: ReportContent, names: Sequence[str]) -> list[tuple[int, int]]:
    """Which series to draw: their positions in the figure, and in the order of styles."""
    if not figure.by_method:
        return [(i, i) for i in range(len(names))]
    return [(i, content.styles.index(name)) for i, name in enumerate(names) if name in content.best]


def _curves(axes: Any, figure: Curves, content: ReportContent) -> None:
    right = axes.twinx() if figure.right_label else None
    for position, style in _shown(figure, content, [curve.name for curve in figure.curves]):
        curve = figure.curves[position]
        x, y = np.array(curve.x), np.array(curve.y, dtype=float)
        target = right if curve.right and right is not None else axes
        step = max(1, -(-len(x) // MARKERS_ON_A_CURVE))
        (line,) = target.plot(
            x,
            y,
            label=_plain(curve.name),
            color=COLOURS[style % len(COLOURS)],
            linestyle=DASHES[style % len(DASHES)],
            marker=MARKERS[style % len(MARKERS)],
            markevery=(style % step, step) if len(x) > 1 else None,
            markersize=4,
            linewidth=1.4,
        )
        if curve.spread is not None:
            band = np.array(curve.spread, dtype=float)
            low, high = _within(figure.bounds, y - band), _within(figure.bounds, y + band)
            target.fill_between(x, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set(xlabel=figure.x_label, ylabel=figure.y_label, xscale="log" if figure.log_x else "linear")
    if right is not None:
        right.set_ylabel(figure.right_label)
        right.spines["right"].set_visible(True)
        right.grid(False)
    if figure.mark is not None:
        axes.axhline(figure.mark, color="black", linewidth=0.8)
    if figure.bounds is not None and figure.bounds[1] is None:
        axes.set_ylim(bottom=figure.bounds[0])
    _legend(axes, right)


def _within(bounds: tuple[float, float | None] | None, values: Any) -> Any:
    return values if bounds is None else np.clip(values, *bounds)


def _legend(axes: Any, right: Any = None, *, inside: bool = True) -> None:
    """Put a short legend among the curves, a long one below them, where it makes the figure taller."""
    handles, labels = axes.get_legend_handles_labels()
    if right is not None:
        more = right.get_legend_handles_labels()
        handles, labels = handles + more[0], labels + more[1]
    if len(labels) < 2:
        return
    longest = max(map(len, labels))
    if inside and len(labels) <= FEW_LABELS and longest <= SHORT_LABEL:
        axes.legend(handles, labels, loc="best", handlelength=3)
        return
    canvas = axes.figure
    columns = max(1, int(canvas.get_figwidth() * LETTERS_PER_INCH / (longest + 8)))
    rows = -(-len(labels) // columns)
    canvas.set_figheight(HEIGHT + ROW_HEIGHT * rows)
    canvas.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=3)


def _bars(axes: Any, figure: Bars, content: ReportContent) -> None:
    shown = _shown(figure, content, [bar.name for bar in figure.bars])
    places, width = np.arange(len(figure.categories)), 0.8 / max(1, len(shown))
    for order, (position, style) in enumerate(shown):
        bar = figure.bars[position]
        axes.bar(
            places - 0.4 + width * (order + 0.5),
            np.array(bar.values, dtype=float),
            width,
            yerr=None if bar.spread is None else np.array(bar.spread, dtype=float),
            label=_plain(bar.name),
            color=COLOURS[style % len(COLOURS)],
            hatch=HATCHES[style % len(HATCHES)],
            edgecolor="white",
            linewidth=0.3,
            error_kw={"linewidth": 0.8, "capsize": 1.5},
        )
    axes.set(xlabel=figure.x_label, ylabel=figure.y_label)
    crowded, step = len(figure.categories) > 6, -(-len(figure.categories) // MOST_TICKS)
    turned: dict[str, Any] = {"rotation": 40, "ha": "right"} if crowded else {}
    axes.set_xticks(places[::step], [_plain(name) for name in figure.categories[::step]], **turned)
    axes.grid(axis="x", visible=False)
    axes.tick_params(axis="x", length=0)
    if figure.bounds is not None:
        axes.set_ylim(figure.bounds)
    _legend(axes, inside=False)


def _scatter(axes: Any, figure: Scatter) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    for order, series in enumerate(figure.series):
        axes.scatter(series.x, series.y, 28, color=COLOURS[order], marker=MARKERS[order], label=series.name)
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


def _heatmap(axes: Any, figure: Heatmap) -> None:
    """Draw the first matrix, as high as it needs."""
    from matplotlib.colors import LogNorm

    cells = np.array([[np.nan if v is None else v for v in row] for row in figure.matrices[0].rows], dtype=float)
    bounds = figure.bounds or (None, None)
    scale = {"norm": LogNorm()} if figure.log else {"vmin": bounds[0], "vmax": bounds[1]}
    image = axes.imshow(cells, cmap="Blues", aspect="equal" if figure.square else "auto", **scale)
    canvas = axes.figure
    canvas.colorbar(image, ax=axes, label=figure.value_label, pad=0.02)
    axes.set(xlabel=figure.x_label, ylabel=figure.y_label)
    axes.grid(False)
    for names, ticks in ((figure.column_labels, axes.set_xticks), (figure.row_labels, axes.set_yticks)):
        step = -(-len(names) // MOST_TICKS)
        ticks(range(0, len(names), step), [_plain(name) for name in names[::step]], fontsize=7)
    if figure.square:
        axes.tick_params(axis="x", labelrotation=90 if max(map(len, figure.column_labels)) > 2 else 0)
    canvas.set_figheight(NARROW * 0.85 if figure.square else min(6.0, 1.4 + 0.16 * len(figure.row_labels)))


def _plain(text: str) -> str:
    """A name with dollar signs escaped, which would start a formula."""
    return text.replace("$", r"\$")
