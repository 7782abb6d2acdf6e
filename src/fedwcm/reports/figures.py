"""The figures of a report as plain data, from which the page, the files for a paper and the CSV are made."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, Self

from fedwcm.reports.statistics import Spread

Number = float | None


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Fields that all figures share.

    Args:
        key: name of its files, and its anchor in the page.
        caption: how to read it.
        by_method: whether its series are the compared methods, which the page switches on and off.
        wide: whether it needs the whole width of a page.
    """

    kind: ClassVar[str]

    key: str
    title: str
    caption: str
    by_method: bool = False
    wide: bool = False

    def data(self) -> dict[str, object]:
        """Return the figure for JSON, with numbers of five digits."""
        return {"kind": self.kind, **{key: _short(value) for key, value in asdict(self).items()}}


@dataclass(frozen=True)
class Curve:
    """A line; `spread` is the standard deviation, drawn as a band. `right` puts it on the second axis.

    `style` is its place in the order of styles, by default its place in the figure, or that of its method.
    `point` is marked by a circle.
    """

    name: str
    x: Sequence[float]
    y: Sequence[Number]
    spread: Sequence[Number] | None = None
    right: bool = False
    style: int | None = None
    point: tuple[float, float] | None = None

    @classmethod
    def of(cls, name: str, x: Sequence[float], values: Sequence[Spread], style: int | None = None) -> Self:
        """Return the means, with a band if one of them is of several runs."""
        return cls(name, x, *_means_and_band(values), style=style)


@dataclass(frozen=True, kw_only=True)
class Curves(Figure):
    """Lines over rounds, or over an option.

    Args:
        log_x: whether the horizontal axis is logarithmic.
        bounds: the range of possible values; None for no upper limit.
        mark: a reference value, drawn as a horizontal line.
        comparable: whether the curves measure the same, as those of compared methods do.
    """

    kind: ClassVar[str] = "curves"

    curves: Sequence[Curve] = ()
    y_label: str
    x_label: str = "round"
    log_x: bool = False
    right_label: str | None = None
    bounds: tuple[float, float | None] | None = None
    mark: float | None = None
    comparable: bool = False


@dataclass(frozen=True)
class Bar:
    """One series of bars, one value per category; `style` as that of a curve."""

    name: str
    values: Sequence[Number]
    spread: Sequence[Number] | None = None
    style: int | None = None

    @classmethod
    def of(cls, name: str, values: Sequence[Spread | None], style: int | None = None) -> Self:
        """Return the means, with error bars if one of them is of several runs."""
        return cls(name, *_means_and_band(values), style)


def _means_and_band(values: Sequence[Spread | None]) -> tuple[list[Number], list[Number] | None]:
    band = [value and value.std for value in values] if any(value and value.runs > 1 for value in values) else None
    return [value and value.mean for value in values], band


@dataclass(frozen=True, kw_only=True)
class Bars(Figure):
    """Grouped bars."""

    kind: ClassVar[str] = "bars"

    categories: Sequence[str] = ("",)
    bars: Sequence[Bar] = ()
    x_label: str = ""
    y_label: str
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True)
class ScatterSeries:
    """Labelled points of one colour."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    labels: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Scatter(Figure):
    """Points over a logarithmic axis that runs from large to small."""

    kind: ClassVar[str] = "scatter"

    series: Sequence[ScatterSeries]
    x_label: str
    y_label: str
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True)
class Matrix:
    """A matrix, row by row; None is an empty cell."""

    name: str
    rows: Sequence[Sequence[Number]]


@dataclass(frozen=True, kw_only=True)
class Heatmap(Figure):
    """A matrix in colours. The reader picks one of several `matrices`."""

    kind: ClassVar[str] = "heatmap"

    column_labels: Sequence[str]
    row_labels: Sequence[str]
    matrices: Sequence[Matrix]
    x_label: str
    y_label: str
    value_label: str
    log: bool = False
    bounds: tuple[float, float] | None = None
    square: bool = False


@dataclass(frozen=True)
class Estimates:
    """A series of estimates, one per row, with their intervals; None where there is none."""

    name: str
    means: Sequence[Number]
    lows: Sequence[Number]
    highs: Sequence[Number]


@dataclass(frozen=True, kw_only=True)
class Intervals(Figure):
    """Estimates with their intervals, row by row, about a line at 0."""

    kind: ClassVar[str] = "intervals"

    row_labels: Sequence[str]
    series: Sequence[Estimates]
    x_label: str


def _short(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, float | list | tuple | dict):
        return value
    if isinstance(value, float):
        rounded = float(f"{value:.5g}")
        return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    return [_short(item) for item in value]


def thin_curve(length: int, limit: int) -> list[int]:
    """Return at most `limit` indices of a sequence, evenly spaced, including the first and the last."""
    if length <= limit:
        return list(range(length))
    return [round(i * (length - 1) / (limit - 1)) for i in range(limit)]
