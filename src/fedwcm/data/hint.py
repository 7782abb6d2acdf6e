"""Name the nearest known word in an error message."""

from collections.abc import Iterable

from fedwcm.core.checks import nearest


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the known word nearest to `word`, or nothing if none is near."""
    near = nearest(word.lower(), known)
    return f" (did you mean {near!r}?)" if near else ""
