"""Figures that would show nothing: what is the same in every round, or for every method, is said in words."""

import math
from collections.abc import Sequence

from fedwcm.reports.figures import Bars, Curves, Figure

ALWAYS_DRAWN = ("accuracy", "test-accuracy")
"""Figures that a reader looks for first."""

MOST_NAMED = 6
"""Series up to which each is named with its value."""


def is_constant(figure: Figure) -> bool:
    """Whether all curves are level, or all bars of a single category are equal."""
    if figure.key in ALWAYS_DRAWN:
        return False
    if isinstance(figure, Curves):
        values = [[y for y in curve.y if y is not None] for curve in figure.curves]
        return max(map(len, values), default=0) > 1 and all(map(_equal, values))
    if isinstance(figure, Bars) and len(figure.bars) > 1 and len(figure.categories) == 1:
        return _equal([value for bar in figure.bars for value in bar.values if value is not None])
    return False


def constant_note(figures: Sequence[Figure]) -> str:
    """A sentence about the figures that are not drawn; empty if there are none."""
    said = [f"“{figure.title}” ({_values(figure)})" for figure in figures]
    return f"Constant, and so not drawn: {', '.join(said)}." if said else ""


def _values(figure: Figure) -> str:
    known = _series(figure)
    unit = f" {figure.y_label}" if isinstance(figure, Curves | Bars) and figure.y_label in UNITS else ""
    lowest, largest = min(known.values()), max(known.values())
    if _equal(list(known.values())):
        return f"{lowest:.4g}{unit}"
    if len(known) > MOST_NAMED:
        return f"{lowest:.4g} to {largest:.4g}{unit}"
    return ", ".join(f"{name} {value:.4g}{unit}" for name, value in known.items())


UNITS = ("MB", "seconds", "degrees")


def _series(figure: Figure) -> dict[str, float]:
    """The value of each series that has one."""
    if isinstance(figure, Curves):
        named = [(curve.name, curve.y) for curve in figure.curves]
    else:
        named = [(bar.name, bar.values) for bar in figure.bars] if isinstance(figure, Bars) else []
    return {name: value for name, values in named for value in values[:1] if value is not None}


def _equal(values: Sequence[float]) -> bool:
    return all(math.isclose(value, values[0], rel_tol=1e-6, abs_tol=1e-12) for value in values)
