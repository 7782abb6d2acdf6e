"""The figures of a report as plain data: what the page, the files for a paper and the CSV are all made from."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

Number = float | None


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What every figure has.

    Args:
        key: name of its files, and its address in the page.
        caption: how to read it.
        by_method: whether its series are the compared methods, switched on and off for the whole page.
        wide: whether it needs the whole width of a page.
    """

    kind: ClassVar[str]

    key: str
    title: str
    caption: str
    by_method: bool = False
    wide: bool = False

    def data(self) -> dict[str, object]:
        """The figure for JSON, with numbers of five digits."""
        short = _short(asdict(self))
        assert isinstance(short, dict)
        return {"kind": self.kind, **short}


@dataclass(frozen=True)
class Curve:
    """A line; `spread` is the standard deviation, drawn as a band. `right` puts it on the second axis."""

    name: str
    x: Sequence[float]
    y: Sequence[Number]
    spread: Sequence[Number] | None = None
    right: bool = False


@dataclass(frozen=True, kw_only=True)
class Curves(Figure):
    """Lines over rounds.

    Args:
        bounds: what values cannot leave; None for no limit above.
        mark: a value that matters, drawn as a line across.
    """

    kind: ClassVar[str] = "curves"

    curves: Sequence[Curve] = ()
    y_label: str
    x_label: str = "round"
    right_label: str | None = None
    bounds: tuple[float, float | None] | None = None
    mark: float | None = None


@dataclass(frozen=True)
class Bar:
    """One series of bars, a value for each category."""

    name: str
    values: Sequence[Number]
    spread: Sequence[Number] | None = None


@dataclass(frozen=True, kw_only=True)
class Bars(Figure):
    """Bars side by side."""

    kind: ClassVar[str] = "bars"

    categories: Sequence[str]
    bars: Sequence[Bar]
    x_label: str
    y_label: str
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True)
class Cloud:
    """Named points that belong together."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    labels: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Points(Figure):
    """Points over a logarithmic axis that runs from large to small."""

    kind: ClassVar[str] = "points"

    clouds: Sequence[Cloud]
    x_label: str
    y_label: str
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True)
class Cells:
    """One matrix, row by row; None is an empty cell."""

    name: str
    rows: Sequence[Sequence[Number]]


@dataclass(frozen=True, kw_only=True)
class Grid(Figure):
    """A matrix in colours. With several `choices` the reader picks one."""

    kind: ClassVar[str] = "grid"

    columns: Sequence[str]
    lines: Sequence[str]
    choices: Sequence[Cells]
    x_label: str
    y_label: str
    value_label: str
    log: bool = False
    bounds: tuple[float, float] | None = None
    square: bool = False


def _short(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, float | list | tuple | dict):
        return value
    if isinstance(value, float):
        rounded = float(f"{value:.5g}")
        return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    return [_short(item) for item in value]


def thinned(length: int, limit: int) -> list[int]:
    """At most `limit` indices of a sequence, evenly spaced, the first and the last among them."""
    if length <= limit:
        return list(range(length))
    return [round(i * (length - 1) / (limit - 1)) for i in range(limit)]
