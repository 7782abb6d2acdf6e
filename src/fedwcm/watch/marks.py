"""Numbers as a few characters: lines, bars and spans of time."""

from collections.abc import Sequence

LEVELS = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉█"


def spark_line(values: Sequence[float], width: int, low: float | None = None, high: float | None = None) -> str:
    """A line of at most `width` blocks, from `low` to `high` or else over the range of the values themselves."""
    if not values:
        return ""
    shown = _thinned(values, width)
    bottom = min(shown) if low is None else low
    top = max(shown) if high is None else high
    span = (top - bottom) or 1.0
    steps = len(LEVELS) - 1
    return "".join(LEVELS[round(steps * min(max((value - bottom) / span, 0), 1))] for value in shown)


def bar(share: float, width: int) -> str:
    """A bar that fills this share of the width, exact to an eighth of a character."""
    eighths = round(min(max(share, 0), 1) * width * 8)
    whole, part = divmod(eighths, 8)
    return (EIGHTHS[8] * whole + (EIGHTHS[part] if part else "")).ljust(width)


def short(value: float) -> str:
    """Three decimals, or a power of ten for what is too large for them."""
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.1e}"


def span_of(seconds: float) -> str:
    """A span of time as people say it: 45 s, 3 min 20 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _thinned(values: Sequence[float], width: int) -> list[float]:
    """So many values, evenly spread; the last one is always among them."""
    if len(values) <= width:
        return list(values)
    return [values[(number + 1) * len(values) // width - 1] for number in range(width)]
