"""Axes that stay readable with a diverged run: values far beyond the others are off scale."""

import math
from collections.abc import Sequence

from fedwcm.reports.figures import Curve, Curves

FAR = 4.0
"""How many times the usual values of a figure a value may be and still be on scale."""


OUT_OF_CONTROL = 1000.0
"""A loss above that of any model that learns: guessing among 1000 classes has a cross-entropy of 7."""


def upper_limit(figure: Curves) -> float | None:
    """The value above which this figure's values are off scale; None if all are on it.

    The usual value of a curve is its first one if it falls from there, as the loss of a model that learns, else
    its lower quartile. Where curves measure the same, a quarter of them suffices to set the scale; elsewhere the
    largest sets it.
    """
    usual = sorted(value for curve in figure.curves if (value := _usual(curve)) > 0)
    if not usual or (figure.bounds is not None and figure.bounds[1] is not None):
        return None
    alike = figure.by_method or figure.comparable
    limit = FAR * max(usual[(len(usual) - 1) // 4 if alike else -1], figure.mark or 0.0)
    return limit if any(highest(curve) > limit for curve in figure.curves) else None


def off_scale(figure: Curves) -> dict[str, float]:
    """The curves that leave the scale, and the highest value of each."""
    limit = upper_limit(figure)
    if limit is None:
        return {}
    return {curve.name: highest(curve) for curve in figure.curves if highest(curve) > limit}


def visible_top(figure: Curves, curves: Sequence[Curve]) -> float:
    """The highest value of these curves that is on scale; bands count of those that never leave it."""
    limit = upper_limit(figure) or math.inf
    tops = [_top(curve, limit) for curve in curves]
    return max([*tops, figure.mark or 0.0])


def _top(curve: Curve, limit: float) -> float:
    spread = curve.spread if curve.spread is not None and highest(curve) <= limit else [0.0] * len(curve.y)
    on_scale = [(y, s or 0.0) for y, s in zip(curve.y, spread, strict=True) if y is not None and y <= limit]
    return max((min(y + s, limit) for y, s in on_scale), default=0.0)


def highest(curve: Curve) -> float:
    return max((y for y in curve.y if y is not None), default=0.0)


def _usual(curve: Curve) -> float:
    known = [y for y in curve.y if y is not None]
    if not known:
        return 0.0
    quartile = sorted(known)[(len(known) - 1) // 4]
    return max(known[0], quartile) if known[0] < OUT_OF_CONTROL else quartile
