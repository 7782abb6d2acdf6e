"""Text from elsewhere, as it may be shown; durations and numbers as people read them; bars and sparklines."""

import csv
import io
import unicodedata
from collections.abc import Iterable, Sequence


def printable(text: str) -> str:
    """Return a text without characters that steer a terminal or break a line of a log: they are escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def escape_controls(text: str) -> str:
    """Return a text with its control characters escaped; all others stay, so that names can be compared."""
    return "".join(repr(c)[1:-1] if unicodedata.category(c) == "Cc" else c for c in text)


def csv_cells(cells: Iterable[object]) -> list[object]:
    """Return the cells of a row with an apostrophe before each text that is a formula to a spreadsheet."""
    return [f"'{cell}" if isinstance(cell, str) and _is_formula(cell) else cell for cell in cells]


def format_csv(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV, without formulas."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(csv_cells, rows))
    return text.getvalue()


def format_markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows as a table in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))


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
    """Return about two digits of a duration: 0.35 s, 2.5 min, 12 h, 2.3 days; `unknown` if it is None."""
    if seconds is None:
        return "unknown"
    for unit, length in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{_two_digits(seconds / length)} {unit}"
    return f"{_two_digits(seconds)} s"


def _two_digits(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


LEVELS = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉█"


def sparkline(values: Sequence[float], width: int, low: float | None = None, high: float | None = None) -> str:
    """Return a line of at most `width` blocks, scaled from `low` to `high` or to the range of the values."""
    if not values:
        return ""
    shown = _thin(values, width)
    bottom = min(shown) if low is None else low
    top = max(shown) if high is None else high
    span = (top - bottom) or 1.0
    steps = len(LEVELS) - 1
    return "".join(LEVELS[round(steps * min(max((value - bottom) / span, 0), 1))] for value in shown)


def bar(share: float, width: int) -> str:
    """Return a bar that fills this share of the width, exact to an eighth of a character."""
    eighths = round(min(max(share, 0), 1) * width * 8)
    whole, part = divmod(eighths, 8)
    return (EIGHTHS[8] * whole + (EIGHTHS[part] if part else "")).ljust(width)


def short_number(value: float) -> str:
    """Return three decimals, or scientific notation for large numbers."""
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.1e}"


def _thin(values: Sequence[float], width: int) -> list[float]:
    """Return at most `width` values, evenly spaced, including the last."""
    if len(values) <= width:
        return list(values)
    return [values[(number + 1) * len(values) // width - 1] for number in range(width)]
