"""Errors that name the field, the value and what is allowed."""

import difflib
from collections.abc import Iterable


def require(holds: bool, field: str, value: object, allowed: str) -> None:
    """Raise a ValueError that says which field is wrong, unless the condition holds."""
    if not holds:
        raise ValueError(f"{field} = {value!r} is not allowed: it must be {allowed}")


def unknown(kind: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return ValueError(f"unknown {kind} {name!r}.{hint} Known: {', '.join(names)}")
