"""How the series of a figure look: the same on the page and in the files for a paper.

Series differ by colour, dash and marker, bars by colour and hatch, so that they can be told apart in print and by
colour-blind readers. Seven colours, five dashes and six markers have no common factor: 210 series differ.
"""

import math
from collections.abc import Sequence

from fedwcm.reports.figures import Curve, Curves

LIGHT = ("#0072b2", "#d55e00", "#009e73", "#b0508a", "#e69f00", "#56b4e9", "#1b1f24")
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""

DARK = ("#4aa8e0", "#ff8a3d", "#2fc79a", "#e29ac6", "#f2b632", "#9ad6ff", "#e8ecf0")
"""The same on a dark ground."""

DASHES: tuple[tuple[float, ...], ...] = ((), (7, 4), (2, 3), (10, 3, 2, 3), (4, 2, 4, 6))
"""Lengths of strokes and gaps of a line that is 2 wide."""

MARKERS = {
    "o": "M5,0A5,5,0,1,1,5,10A5,5,0,1,1,5,0Z",
    "s": "M0,0H10V10H0Z",
    "^": "M5,0L10,10H0Z",
    "D": "M5,0L10,5L5,10L0,5Z",
    "v": "M0,0H10L5,10Z",
    "P": "M3,0H7V3H10V7H7V10H3V7H0V3H3Z",
}
"""Markers by their names in matplotlib, as paths in a square of 10."""

FIXED = (
    *("fedwcm", "fedwcm+longtail", "fedcm", "scaffold", "feddyn", "fedprox", "fedavg"),
    *("fedwcm-x", "fedcm+longtail", "fedcm-nominal", "fedgrab", "feddyn+longtail", "balancefl", "fedavgm"),
    *("fedwcm-literal", "fedavg+longtail", "mime", "creff", "fedsam", "fedadam", "fednova"),
    *("fedwcm-x-literal", "mofedsam", "mimelite", "clip2fl", "fedsmoo", "fedspeed", "fedavg-cheng"),
    *("fedwmsam", "fedlesam", "slowmo", "fedloge", "fedgamma", "fedlesam-s", "fedlesam-d"),
    *("fedwcm-natural", "fedetf", "fedlc", "ccvr", "fed3r", "fedexp", "q-ffl"),
    *("fedwcm-natural-balanced", "imbsam", "fedrs", "fedncm", "fednpc", "fedntd", "tau-norm"),
    *("fedwcm+prior_ce", "rucr", "vs", "fedrela", "fedcm+focal", "fedcm-nominal+focal", "fedavg+prior_ce"),
    *("fedcm+balance-loss", "fedcm+balance-sampler", "fedcm-nominal+balance-loss"),
    *("fedcm-nominal+balance-sampler", "ditto", "fedper", "fedrep", "fedyoyo", "power-of-choice"),
    *("pfedme", "fedbn", "moon", "fedproto", "fedbuff"),
)
"""Methods of the package in the order of their styles, the same in every report; a column shares a colour."""

HATCHES = ("", "///", "...", "\\\\\\", "---")
"""Patterns of bars by their names in matplotlib; the page has its own for each."""


def styles_of(series: Sequence[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Return the style of each method and setting: a colour per method, a dash, marker and hatch per setting.

    A style is a number: it has the colour, dash, marker and hatch of that place in their lists, which begin again.
    """
    methods = list(dict.fromkeys(method for method, _ in series))
    settings = list(dict.fromkeys(setting for _, setting in series))
    patterns = len(DASHES) * len(MARKERS)
    if len(methods) > len(LIGHT) or len(settings) > patterns:
        return {one: place for place, one in enumerate(series)}
    return {
        (method, setting): _style(methods.index(method), settings.index(setting), patterns)
        for method, setting in series
    }


def _style(colour: int, pattern: int, patterns: int) -> int:
    """Return the first style with the colour and the pattern of these places."""
    return next(style for style in range(pattern, patterns * len(LIGHT), patterns) if style % len(LIGHT) == colour)


def fixed_styles(labels: Sequence[str]) -> dict[str, int]:
    """Return the style of each method: its own if the package fixes one, else the first of a free colour."""
    styles = {label: FIXED.index(label) for label in labels if label in FIXED}
    for label in labels:
        if label not in styles:
            taken, colours = set(styles.values()), {style % len(LIGHT) for style in styles.values()}
            free = (style for style in range(len(labels) + len(FIXED)) if style not in taken)
            styles[label] = min(free, key=lambda style: (style % len(LIGHT) in colours, style))
    return styles


def page_styles() -> dict[str, object]:
    """Return what the page's scripts need to know."""
    return {"light": LIGHT, "dark": DARK, "dashes": DASHES, "markers": list(MARKERS.values())}


FAR = 4.0
"""How many times the usual values of a figure a value may be and still be on scale."""


OUT_OF_CONTROL = 1000.0
"""A loss above that of any model that learns: guessing among 1000 classes has a cross-entropy of 7."""


def upper_limit(figure: Curves) -> float | None:
    """Return the value above which this figure's values are off scale; None if all are on it.

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
    """Return the curves that leave the scale, and the highest value of each."""
    limit = upper_limit(figure)
    if limit is None:
        return {}
    return {curve.name: highest(curve) for curve in figure.curves if highest(curve) > limit}


def visible_top(figure: Curves, curves: Sequence[Curve]) -> float:
    """Return the highest value of these curves that is on scale; bands count of those that never leave it."""
    limit = upper_limit(figure) or math.inf
    tops = [_top(curve, limit) for curve in curves]
    return max([*tops, figure.mark or 0.0])


def _top(curve: Curve, limit: float) -> float:
    spread = curve.spread if curve.spread is not None and highest(curve) <= limit else [0.0] * len(curve.y)
    on_scale = [(y, s or 0.0) for y, s in zip(curve.y, spread, strict=True) if y is not None and y <= limit]
    return max((min(y + s, limit) for y, s in on_scale), default=0.0)


def highest(curve: Curve) -> float:
    """Return the highest value of a curve, 0 if it has none."""
    return max((y for y in curve.y if y is not None), default=0.0)


def _usual(curve: Curve) -> float:
    known = [y for y in curve.y if y is not None]
    if not known:
        return 0.0
    quartile = sorted(known)[(len(known) - 1) // 4]
    return max(known[0], quartile) if known[0] < OUT_OF_CONTROL else quartile
