"""The types of a class's fields, and the mark of an option that has a flag."""

import inspect
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, get_type_hints

T = TypeVar("T")


def field_types(cls: type) -> dict[str, Any]:
    """Return the types of a class's fields, evaluated once: it takes longer than all else in reading options."""
    return _field_types(cls)


_field_types = cache(get_type_hints)


@dataclass(frozen=True)
class Flag:
    """Marks an option that has a flag and a Python keyword; they have the name of the field, or this one."""

    name: str = ""


Flagged = Annotated[T, Flag()]


def flag_names(cls: type) -> dict[str, str]:
    """Return the fields of a class that are marked with `Flag`, by the name of the flag."""
    hints = get_type_hints(cls, include_extras=True)
    marks = {name: flag for name in hints for flag in _marks(hints[name])}
    return {marks[field.name].name or field.name: field.name for field in fields(cls) if field.name in marks}


def _marks(kind: Any) -> list[Flag]:
    return [mark for mark in getattr(kind, "__metadata__", ()) if isinstance(mark, Flag)]


def undecorated_fields(cls: type) -> str | None:
    """Say which annotated attributes of a class are no fields, since it lacks @dataclass; or None."""
    known = {field.name for field in fields(cls)} if is_dataclass(cls) else set()
    for base in cls.__mro__:
        own = {} if "__dataclass_fields__" in vars(base) else inspect.get_annotations(base)
        lost = [name for name, kind in own.items() if name not in known and "ClassVar" not in str(kind)]
        if lost:
            return (
                f"{base.__name__} has no @dataclass of its own: {', '.join(lost)} is no option; "
                "write @dataclass(frozen=True, kw_only=True) above the class"
            )
    return None
