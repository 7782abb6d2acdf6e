"""Histories and tables as data frames and plots. pandas and matplotlib are imported where they are needed."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from fedwcm.core.checks import unknown
from fedwcm.experiment.records import RoundRecord
from fedwcm.experiment.trackers.protocol import scalars_of
from fedwcm.reports.figures import Curve
from fedwcm.reports.series import Reader
from fedwcm.utils.extras import optional_module

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

EXTRA = "notebook"
"""The extra of this package that brings pandas, matplotlib and the widgets of progress bars."""


def history_frame(history: Sequence[RoundRecord]) -> "pd.DataFrame":
    """A row per evaluated round, a column per number, the rounds as the index."""
    pandas = optional_module("pandas", EXTRA, "history_frame()")
    frame: pd.DataFrame = pandas.DataFrame([scalars_of(record.to_json()) for record in history])
    return frame.astype({"round": int}).set_index("round") if history else frame


def csv_frame(text: str) -> "pd.DataFrame":
    """A table in CSV as a DataFrame: only empty cells are missing values, not those that say `NA` or `none`."""
    pandas = optional_module("pandas", EXTRA, "table()")
    frame: pd.DataFrame = pandas.read_csv(io.StringIO(text), keep_default_na=False, na_values=[""])
    return frame


def known_metric(metric: str, history: Sequence[RoundRecord]) -> None:
    """Raise an error that names the metrics that were measured if this is none of them."""
    measured = {key for record in history for key in scalars_of(record.to_json())} - {"round"}
    if metric not in measured:
        raise unknown("metric", metric, measured)


def flat_metric(metric: str) -> Reader:
    """A reader of the number under a flat name, as in `history_frame`."""
    return lambda record: scalars_of(record.to_json()).get(metric)


def history_curve(name: str, history: Sequence[RoundRecord], metric: str) -> Curve:
    """A number over the rounds in which it was measured."""
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
