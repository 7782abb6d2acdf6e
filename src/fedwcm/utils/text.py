"""Text from elsewhere, as it may be shown."""

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
