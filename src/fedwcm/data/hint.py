"""Name the nearest known word in an error message."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the known word nearest to `word`, or nothing if none is near."""
    matches = get_close_matches(word.lower(), list(known), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
