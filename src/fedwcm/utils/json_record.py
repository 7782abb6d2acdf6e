"""Dataclasses that are read from JSON and written to it, with errors that name the place and the key."""

import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Self, TypeAlias, TypeGuard, get_args, get_origin

from fedwcm.utils.field_types import field_types
from fedwcm.utils.text import escape_controls

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

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
        if not isinstance(values, Mapping):
            raise RecordError(f"{where}: {_show(values)} is not an object")
        kinds = field_types(cls)
        read: dict[str, Any] = {}
        for f in fields(cls):
            if f.name in values and f.name != "extra":
                read[f.name] = _check(values[f.name], kinds[f.name], f"{where}: {f.name}")
            elif f.default is MISSING and f.name != "extra":
                raise RecordError(f"{where}: the key {f.name!r} is missing")
        extra = {str(key): value for key, value in values.items() if key not in read}
        return cls(**read, extra=extra)

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


def _check(value: object, kind: Any, where: str) -> Any:
    """Return the value, with lists as tuples, if it has this type."""
    origin = get_origin(kind)
    if kind is object:
        return value
    if origin is types.UnionType:
        return None if value is None else _check(value, _without_none(kind), where)
    if origin is tuple and isinstance(value, list | tuple):
        return _checked_list(value, get_args(kind)[0], where)
    if origin is Mapping and isinstance(value, Mapping):
        return {
            escape_controls(str(key)): _check(item, get_args(kind)[1], f"{where}[{key!r}]")
            for key, item in value.items()
        }
    if type(value) in SCALARS.get(kind, ()):
        return escape_controls(value) if isinstance(value, str) else value
    raise RecordError(f"{where} = {_show(value)} is not allowed: it must be {_describe(kind)}")


def _checked_list(values: Sequence[object], kind: Any, where: str) -> tuple[Any, ...]:
    scalar = _without_none(kind)
    allowed = {*SCALARS.get(scalar, ()), *([type(None)] if scalar is not kind else [])}
    if scalar in SCALARS and set(map(type, values)) <= allowed:  # a long list is checked at once
        return tuple(values)
    return tuple(_check(value, kind, f"{where}[{i}]") for i, value in enumerate(values))


def _without_none(kind: Any) -> Any:
    """Return X for `X | None`, and any other type unchanged."""
    if get_origin(kind) is not types.UnionType:
        return kind
    return next(part for part in get_args(kind) if part is not type(None))


def _describe(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return "a list, each " + _describe(_without_none(get_args(kind)[0]))
    return NAMES.get(kind, "an object")


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
