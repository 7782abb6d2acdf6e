"""The types of a class's fields."""

import inspect
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_type_hints


def field_types(cls: type) -> dict[str, Any]:
    """Return the types of a class's fields, evaluated once: it takes longer than all else in reading options."""
    return _field_types(cls)


_field_types = cache(get_type_hints)


def lost_fields(cls: type) -> str | None:
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
