"""The types of a class's fields."""

from functools import cache
from typing import Any, get_type_hints


def field_types(cls: type) -> dict[str, Any]:
    """Return the types of a class's fields, evaluated once: it takes longer than all else in reading options."""
    return _field_types(cls)


_field_types = cache(get_type_hints)
