"""Errors that name the field, the value and what is allowed."""

import difflib
from collections.abc import Iterable
from typing import Literal, get_args, get_origin, get_type_hints


def require(holds: bool, field: str, value: object, allowed: str) -> None:
    """Raise a ValueError that says which field is wrong, unless the condition holds."""
    if not holds:
        raise ValueError(f"{field} = {value!r} is not allowed: it must be {allowed}")


def require_choices(options: object) -> None:
    """Raise a ValueError for a field of a dataclass that is none of the values its `Literal` type lists."""
    for field, kind in get_type_hints(type(options)).items():
        if get_origin(kind) is Literal:
            value = getattr(options, field)
            require(value in get_args(kind), field, value, " or ".join(map(repr, get_args(kind))))


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like this one; None if none is."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)), None)


def unknown(kind: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    near = nearest(name, names)
    hint = f" Did you mean {near!r}?" if near else ""
    return ValueError(f"unknown {kind} {name!r}.{hint} Known: {', '.join(names)}")
