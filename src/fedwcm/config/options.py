"""Options as dataclass fields: parsed from text, checked against their types, with suggestions for typos."""

import dataclasses
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal, TypeVar, get_args, get_origin

from fedwcm.core.checks import require, unknown
from fedwcm.utils.field_types import field_types
from fedwcm.utils.json_record import is_number

T = TypeVar("T")

SHORT_NUMBER = re.compile(r"[+-]?(\d+\.|\.\d+)([eE][+-]?\d+)?", re.ASCII)
"""A number without a digit on one side of its point, which TOML does not have."""


def parse_value(text: str) -> object:
    """Parse a TOML value (`0.1`, `true`, `[1, 2]`) or a number such as `.1`; all else is returned as a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # not TOML, or nested without end
        return float(text) if SHORT_NUMBER.fullmatch(text) else text


def make(cls: type[T], values: Mapping[str, object], where: str) -> T:
    """Build a dataclass from plain values; an error names the option as `where.field`."""
    fields = field_types(cls)
    known = (
        [field.name for field in dataclasses.fields(cls) if field.init] if dataclasses.is_dataclass(cls) else []
    )
    checked = {}
    for key, value in values.items():
        if key not in known:
            raise not_an_option(where, key, known, cls)
        checked[key] = convert(value, fields[key], f"{where}.{key}")
    try:
        return cls(**checked)
    except ValueError as error:
        names_field = str(error).partition(" = ")[0] in known
        raise ValueError(f"{where}.{error}" if names_field else f"{where}: {error}") from None
    except TypeError as error:  # a class of the user's own with a field that has no default
        raise ValueError(f"{where}: {cls.__name__} cannot be made from {checked}: {error}") from error


def not_an_option(where: str, key: str, known: Iterable[str], owner: object) -> ValueError:
    """Return the error for an option that `owner`, a class or an object, does not have."""
    names = [f"{where}.{name}" for name in known]
    if names:
        component = getattr(owner, "name", "")
        return unknown(f"option of {component}:" if component else "option", f"{where}.{key}", names)
    name = getattr(owner, "__qualname__", type(owner).__qualname__)
    hint = "" if dataclasses.is_dataclass(owner) else ", which are the fields of a class with @dataclass"
    return ValueError(f"unknown option '{where}.{key}': {name} has no options{hint}")


class NamedObject(str):
    """The name of an object that stands in a list of names, and the object itself."""

    value: Any

    def __new__(cls, name: str, value: Any) -> "NamedObject":
        named = super().__new__(cls, name)
        named.value = value
        return named

    def __getnewargs__(self) -> tuple[str, Any]:  # type: ignore[override]
        return str(self), self.value


def convert(value: object, kind: Any, where: str) -> Any:
    """Return the value as this type, or raise a ValueError that names the option and what is allowed."""
    origin, arguments = get_origin(kind), get_args(kind)
    if int in (kind, *arguments) and isinstance(value, int):
        require(abs(value) < 2**63, where, value, "a whole number below 2**63")
    if origin in (types.UnionType, typing.Union):
        return _convert_union(value, arguments, where)
    if kind is object:
        return value
    if origin is Literal:
        if value in arguments:
            return value
        raise unknown(f"value for {where}:", str(value), [str(a) for a in arguments])
    if origin is tuple and isinstance(value, str):  # `a,b`, the form of lists in flags and Flower's run-config
        items = [item.strip() for item in value.split(",") if item.strip()]
        value = items if arguments[0] is str else [parse_value(item) for item in items]
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(convert(item, arguments[0], f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict and isinstance(value, str) and "=" in value:
        pairs = (item.rpartition("=") for item in value.split(","))
        value = {name.strip(): parse_value(share.strip()) for name, _, share in pairs}
    if origin is dict and isinstance(value, Mapping):
        return {str(name): convert(item, arguments[1], f"{where}[{name!r}]") for name, item in value.items()}
    if kind is float and is_number(value):
        with suppress(OverflowError):  # a whole number beyond the largest float
            return float(value)
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if kind in (bool, str) and isinstance(value, kind):
        return value
    raise ValueError(f"{where} = {value!r} is not allowed: it must be {describe(kind)}")


def _convert_union(value: object, kinds: tuple[Any, ...], where: str) -> Any:
    if type(None) in kinds and (value is None or value == "none"):
        return None
    for kind in kinds:
        if kind is not type(None):
            try:
                return convert(value, kind, where)
            except ValueError:
                continue
    raise ValueError(f"{where} = {value!r} is not allowed: it must be {_either(kinds)}")


def _either(kinds: tuple[Any, ...]) -> str:
    return " or ".join("none" if kind is type(None) else describe(kind) for kind in kinds)


def describe(kind: Any) -> str:
    """Return the name of a type for error messages."""
    names = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}
    if get_origin(kind) in (types.UnionType, typing.Union):
        return _either(get_args(kind))
    if get_origin(kind) is tuple:
        return "a list, each " + describe(get_args(kind)[0])
    if get_origin(kind) is dict:
        return f"NAME=VALUE, …, each {describe(get_args(kind)[1])}"
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    return names.get(kind, str(kind))


def plain(options: Any) -> dict[str, object]:
    """Return the fields of a dataclass in TOML types: tuples as lists, no entry for None."""
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items() if v is not None}
