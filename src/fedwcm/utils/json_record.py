"""Dataclasses that are read from JSON and written to it, with errors that name the place and the key."""

import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any, Literal, Self, TypeAlias, TypeGuard, TypeVar, get_args, get_origin

from fedwcm.utils.field_types import field_types
from fedwcm.utils.text import escape_controls

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

T = TypeVar("T")
Clean = Callable[[str], str]

SCALARS: dict[Any, tuple[type, ...]] = {int: (int,), float: (float, int), str: (str,), bool: (bool,)}
NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


class RecordError(ValueError):
    """A record that cannot be read. The text names the file, the line if there are several, and the key."""


@dataclass(frozen=True, kw_only=True)
class JsonRecord:
    """Base class of records. A field has the name of its key on disk.

    Fields without a default are required and always written. A field with the default None is written if it is
    set, or if the field that `optional(given=...)` names is set: then None becomes null.

    Args:
        extra: keys that are not fields, such as a method's own diagnostics.
    """

    extra: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        """Return the keys and values on disk."""
        known = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "extra" and self._writes(f)}
        return {**known, **self.extra}

    @classmethod
    def from_json(cls, values: object, where: str) -> Self:
        """Read a record.

        Args:
            values: the object that the JSON text holds.
            where: the place to name in an error, such as `metrics.jsonl, line 3`.

        Raises:
            RecordError: a key is missing, or its value has the wrong type.
        """
        known, extra = _read_fields(cls, values, where, escape_controls)
        return cls(**known, extra=extra)

    def number(self, *path: str) -> float | None:
        """Return the number at this key or path of keys, in the fields or the extra keys; None if missing."""
        value: object = getattr(self, path[0], self.extra.get(path[0]))
        for key in path[1:]:
            value = value.get(key) if isinstance(value, Mapping) else None
        return float(value) if is_number(value) else None

    def _writes(self, f: "Field[Any]") -> bool:
        if f.default is not None or getattr(self, f.name) is not None:
            return True
        given = f.metadata.get("given")
        return given is not None and getattr(self, given) is not None


def read_dataclass(cls: type[T], values: object, where: str) -> T:
    """Read a dataclass as `JsonRecord.from_json` does, but with its text as it is, and without extra keys."""
    return cls(**_read_fields(cls, values, where, str)[0])


def _read_fields(cls: type, values: object, where: str, clean: Clean) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of the fields, checked, and those of all other keys."""
    if not isinstance(values, Mapping):
        raise RecordError(f"{where}: {_show(values)} is not an object")
    kinds, known = field_types(cls), {}
    for f in fields(cls):
        if f.name in values and f.name != "extra":
            known[f.name] = _check(values[f.name], kinds[f.name], f"{where}: {f.name}", clean)
        elif f.default is MISSING and f.default_factory is MISSING:
            raise RecordError(f"{where}: the key {f.name!r} is missing")
    return known, {str(key): value for key, value in values.items() if key not in known}


def optional(given: str | None = None) -> Any:
    """Declare a field that may be None, written as null where the field `given` is set and else left out."""
    return field(default=None, metadata={"given": given})


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether this is an int or a float, but not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def finite(values: Mapping[str, object]) -> dict[str, object]:
    """Replace floats that JSON cannot hold (NaN and the infinities) by None, in lists and objects as well."""
    return {key: _finite(value) for key, value in values.items()}


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return finite(value)
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _check(value: object, kind: Any, where: str, clean: Clean) -> Any:
    """Return the value, with lists as tuples, if it has this type."""
    origin = get_origin(kind)
    if kind is object:
        return value
    if origin is types.UnionType:
        fitting = [part for part in get_args(kind) if type(value) in SCALARS.get(part, ())]
        return None if value is None else _check(value, (*fitting, _without_none(kind))[0], where, clean)
    if origin is tuple and isinstance(value, list | tuple):
        return _checked_list(value, get_args(kind)[0], where, clean)
    if origin is Mapping and isinstance(value, Mapping):
        return {
            clean(str(key)): _check(item, get_args(kind)[1], f"{where}[{key!r}]", clean)
            for key, item in value.items()
        }
    if isinstance(kind, type) and is_dataclass(kind):
        return kind(**_read_fields(kind, value, where, clean)[0])
    if type(value) in SCALARS.get(kind, ()) or (origin is Literal and value in get_args(kind)):
        return clean(value) if isinstance(value, str) else value
    raise RecordError(f"{where} = {_show(value)} is not allowed: it must be {_describe(kind)}")


def _checked_list(values: Sequence[object], kind: Any, where: str, clean: Clean) -> tuple[Any, ...]:
    scalar = _without_none(kind)
    allowed = {*SCALARS.get(scalar, ()), *([type(None)] if scalar is not kind else [])}
    if scalar in SCALARS and set(map(type, values)) <= allowed:  # a long list is checked at once
        return tuple(values)
    return tuple(_check(value, kind, f"{where}[{i}]", clean) for i, value in enumerate(values))


def _without_none(kind: Any) -> Any:
    """Return X for `X | None`, and any other type unchanged."""
    if get_origin(kind) is not types.UnionType:
        return kind
    return next(part for part in get_args(kind) if part is not type(None))


def _describe(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return "a list, each " + _describe(_without_none(get_args(kind)[0]))
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    return NAMES.get(kind, "an object")


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
