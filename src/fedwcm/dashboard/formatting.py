"""Numbers as text: sparklines and bars."""

from collections.abc import Sequence

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
    """Three decimals, or scientific notation for large numbers."""
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.1e}"


def _thin(values: Sequence[float], width: int) -> list[float]:
    """At most `width` values, evenly spaced, including the last."""
    if len(values) <= width:
        return list(values)
    return [values[(number + 1) * len(values) // width - 1] for number in range(width)]
