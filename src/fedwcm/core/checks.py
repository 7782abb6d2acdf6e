"""Errors that name the field, the value and what is allowed."""

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from fedwcm.core.ranges import field_ranges
from fedwcm.utils.field_types import field_types

MOST_LISTED = 50
"""Names of which all are listed beside a suggestion."""


@dataclass(frozen=True)
class Needs:
    """When an option has an effect: a condition on the other options, and the same in words."""

    condition: Callable[[Any], bool]
    words: str


def require(holds: bool, field: str, value: object, allowed: str) -> None:
    """Raise a ValueError that names the field and what is allowed, unless the condition holds."""
    if not holds:
        raise ValueError(f"{field} = {value!r} is not allowed: it must be {allowed}")


def require_allowed(options: object) -> None:
    """Raise a ValueError if a field of a dataclass has a value that its type, `Literal` or a range, leaves out."""
    kinds = field_types(type(options))
    for field, kind in kinds.items():
        if get_origin(kind) is Literal:
            value = getattr(options, field)
            require(value in get_args(kind), field, value, " or ".join(map(repr, get_args(kind))))
    for field, allowed in field_ranges(type(options)).items():
        value, may_lack = getattr(options, field), NoneType in get_args(kinds[field])
        holds = (may_lack and value is None) or (isinstance(value, Real) and float(value) in allowed)
        require(holds, field, value, f"{allowed} or none" if may_lack else str(allowed))


def require_count(field: str, value: object) -> None:
    """Raise a ValueError unless the value is a whole number of at least 1."""
    is_count = type(value) is not bool and isinstance(value, Integral) and int(value) >= 1
    require(is_count, field, value, "a whole number from 1 up")


def shorten(items: Iterable[object], most: int = 10) -> str:
    """Return the first items for a message, and how many more there are."""
    texts = [str(item) for item in items]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word closest to this one, or the one that it ends (`lr` of `local.lr`); None if none is."""
    words = list(known)
    ends = [one for one in words if one.endswith(f".{word}")]
    return next(iter(ends[:1] or difflib.get_close_matches(word, words, n=1, cutoff=0.5)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the known word nearest to `word`, or nothing if none is near."""
    near = nearest(word.lower(), known)
    return f" (did you mean {near!r}?)" if near else ""


def require_known(kind: str, name: str, known: Iterable[str]) -> None:
    """Raise a ValueError that suggests the closest known name, unless this is one of them."""
    names = list(known)
    if name not in names:
        raise unknown(kind, name, names)


def unknown(kind: str, name: str, known: Iterable[str]) -> ValueError:
    """Return the error for a name that does not exist, suggesting the closest one that does."""
    names = sorted(known)
    near = nearest(name, names)
    hint = f" Did you mean {near!r}?" if near else ""
    listed = "" if near and len(names) > MOST_LISTED else f" Known: {', '.join(names)}"
    return ValueError(f"unknown {kind} {name!r}.{hint}{listed}")
