"""How the series of a figure look: the same on the page and in the files for a paper.

Series differ by colour, dash and marker, bars by colour and hatch, so that they can be told apart in print and by
colour-blind readers. Seven colours, five dashes and six markers have no common factor: 210 series differ.
"""

from collections.abc import Sequence

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
    *("fedwcm", "fedwcm+", "fedcm", "scaffold", "feddyn", "fedprox", "fedavg"),
    *("fedwcm-x", "fedcm+", "fedcm-nominal", "fedgrab", "feddyn+", "balancefl", "fedavgm"),
    *("fedwcm-literal", "fedavg+", "mime", "creff", "fedsam", "fedadam", "fednova"),
    *("fedwcm-x-literal", "mofedsam", "mimelite", "clip2fl", "fedsmoo", "fedspeed", "fedavg-cheng"),
    *("fedwmsam", "fedlesam", "slowmo", "fedloge", "fedgamma", "fedlesam-s", "fedlesam-d"),
    *("fedwcm-natural", "fedetf", "fedlc", "ccvr", "fed3r", "fedexp", "q-ffl"),
    *("fedwcm-natural-balanced", "imbsam", "fedrs", "fedncm", "fednpc", "fedntd", "tau-norm"),
    *("fedwcm+prior_ce", "rucr", "vs", "fedrela", "fedcm+focal", "fedcm-nominal+focal", "fedavg+prior_ce"),
    *("fedcm+balance-loss", "fedcm+balance-sampler", "fedcm-nominal+balance-loss"),
    "fedcm-nominal+balance-sampler",
)
"""Methods of the package in the order of their styles, the same in every report; a column shares a colour."""

HATCHES = ("", "///", "...", "\\\\\\", "---")
"""Patterns of bars by their names in matplotlib; the page has its own for each."""


def styles_of(series: Sequence[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """The style of each method and setting: a colour per method, a dash, marker and hatch per setting.

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
    """The first style with the colour and the pattern of these places."""
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
    """What the page's scripts need to know."""
    return {"light": LIGHT, "dark": DARK, "dashes": DASHES, "markers": list(MARKERS.values())}
