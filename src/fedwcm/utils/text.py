"""Text from elsewhere, as it may be shown, and durations as people read them."""

import unicodedata
from collections.abc import Iterable


def printable(text: str) -> str:
    """Return a text without characters that steer a terminal or break a line of a log: they are escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def escape_controls(text: str) -> str:
    """Return a text with its control characters escaped; all others stay, so that names can be compared."""
    return "".join(repr(c)[1:-1] if unicodedata.category(c) == "Cc" else c for c in text)


def csv_cells(cells: Iterable[object]) -> list[object]:
    """Return the cells of a row with an apostrophe before each text that is a formula to a spreadsheet."""
    return [f"'{cell}" if isinstance(cell, str) and _is_formula(cell) else cell for cell in cells]


def _is_formula(text: str) -> bool:
    if text[:1] not in ("=", "+", "-", "@", "\t", "\r"):
        return False
    try:
        float(text)
    except ValueError:
        return len(text) > 1
    return False


def duration(seconds: float) -> str:
    """Return a duration to the second, above an hour to the minute: 45 s, 3 min 20 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def rough_duration(seconds: float | None) -> str:
    """About two digits of a duration: 0.35 s, 2.5 min, 12 h, 2.3 days; `unknown` if it is None."""
    if seconds is None:
        return "unknown"
    for unit, length in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{_two_digits(seconds / length)} {unit}"
    return f"{_two_digits(seconds)} s"


def _two_digits(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"
