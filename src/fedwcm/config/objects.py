"""Objects instead of names: what the Python functions accept besides the textual configuration.

An object that can be rebuilt from text (a method of this package, an importable class) is converted to text. Any
other object is described in the configuration by its class and options (`object:__main__.MyMethod`) and passed
along.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, partial
from inspect import isfunction
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor, nn

from fedwcm.config.options import convert, make, not_an_option
from fedwcm.config.resolve import OBJECT, import_path, object_name
from fedwcm.config.schema import Component, Config
from fedwcm.core.checks import require
from fedwcm.core.loss import Loss
from fedwcm.core.method import Method
from fedwcm.core.sampler import Sampler
from fedwcm.data.partition import PARTITIONS, Partition
from fedwcm.losses import LOSSES
from fedwcm.methods import METHODS
from fedwcm.models import MODELS
from fedwcm.models.checks import require_copyable
from fedwcm.samplers import SAMPLERS
from fedwcm.utils.field_types import field_types

T = TypeVar("T")
ModelFactory = Callable[..., nn.Module]
CLIENT_IDS = f"{OBJECT}client_ids"


@dataclass(frozen=True, eq=False)
class Objects:
    """Objects that cannot be rebuilt from text; None for what the configuration fully describes."""

    method: Method | type[Method] | None = None
    loss: Loss | type[Loss] | None = None
    sampler: Sampler | type[Sampler] | None = None
    model: nn.Module | ModelFactory | None = None
    partition: Partition | None = None
    dataset: Any = None
    client_ids: Any = None

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) is not None for field in fields(self))


NO_OBJECTS = Objects()

REGISTRIES: dict[str, tuple[Mapping[str, Any], Any]] = {
    "method": (METHODS, Method),
    "loss": (LOSSES, Loss),
    "sampler": (SAMPLERS, Sampler),
}


def separate(given: Mapping[str, Any]) -> tuple[dict[str, Any], Objects]:
    """Split keywords into text for the configuration and the objects that must be passed along."""
    given = {key: value.item() if isinstance(value, np.generic) else value for key, value in given.items()}
    text, objects = dict(given), {}
    for kind, read in READERS.items():
        if not isinstance(given.get(kind), (str, Component, type(None))):
            text[kind], objects[kind] = read(given[kind])
    for place in ("dataset", "data_dir"):
        if isinstance(given.get(place), Path):
            text[place] = str(given[place])
    if not isinstance(given.get("dataset"), (str, Path, type(None))):
        text["dataset"], objects["dataset"] = f"{OBJECT}{_title(given['dataset'])}", given["dataset"]
    if not isinstance(given.get("clients"), (int, str, type(None))):
        if text.pop("partition", None) is not None:
            raise ValueError("clients=… assigns every sample to a client, which is a partition: omit partition")
        allowed = "a whole number, or the client of every training sample"
        require(not isinstance(given["clients"], float), "clients", given["clients"], allowed)
        objects["client_ids"] = text.pop("clients")
        text["partition"] = Component(CLIENT_IDS)
    return text, Objects(**objects)


def _component(kind: str, given: Any) -> tuple[Component, Any]:
    """Return a method, loss or sampler as text, and the object itself unless text is enough."""
    known, base = REGISTRIES[kind]
    cls: Any = given if isinstance(given, type) else type(given)
    if not issubclass(cls, base):
        raise ValueError(
            f"{kind} = {given!r} is not allowed: it must be a name, or a subclass or an instance of "
            f"fedwcm.{base.__name__}"
        )
    name = cls.name if cls.name in known and known[cls.name] is cls else import_path(cls)
    if isinstance(given, type):
        return _with_object(name, given)
    _refuse_hidden(kind, given)
    if not _rebuilds(given):
        name = object_name(cls)
    return _with_object(name, given, options_of(given))


def method_text(given: str | Method | type[Method]) -> str:
    """Return a method as it is typed: `NAME[option=value]`; ValueError for an object that text cannot rebuild."""
    if isinstance(given, str):
        return given
    component, kept = _component("method", given)
    if kept is not None:
        raise ValueError(
            f"methods = {given!r:.200} is not allowed: a search names its methods, so that it must be of a class "
            "that can be imported"
        )
    return component.name + _brackets(given)


def object_label(given: Method | type[Method]) -> str:
    """Return the label of a method object in a comparison: `MyMethod[alpha=0.2]`."""
    return Config(method=_component("method", given)[0]).title + _brackets(given)


def _brackets(given: Method | type[Method]) -> str:
    """The options of a method that are not its defaults."""
    if isinstance(given, type):
        return ""
    defaults = {field.name: field.default for field in fields(given)}
    changed = [
        f"{key}={value}" for key, value in options_of(given).items() if getattr(given, key) != defaults[key]
    ]
    return f"[{', '.join(changed)}]" if changed else ""


def _partition(given: Any) -> tuple[Component, Any]:
    """Return a partition as text, and the object itself unless text is enough."""
    if isfunction(given):
        name = import_path(given)
        return _with_object(name, given)
    cls = given if isinstance(given, type) else type(given)
    if not any("__call__" in vars(base) for base in cls.__mro__):
        got = f"the class {given.__name__}" if isinstance(given, type) else repr(given)
        raise ValueError(
            f"partition = {got} is not allowed: it must be a name, or a Partition or its class, such as "
            "fedwcm.data.partition.Equal(clients=10, beta=0.1)"
        )
    name = next((name for name, known in PARTITIONS.items() if known is cls), None) or import_path(cls)
    if isinstance(given, type):
        return _with_object(name, given)
    _refuse_hidden("partition", given)
    if not (is_dataclass(given) and _rebuilds(given)):
        name = object_name(cls)
    return _with_object(name, given, options_of(given))


def _refuse_hidden(kind: str, instance: object) -> None:
    """Refuse attributes that are no fields: a configuration cannot tell two such objects apart."""
    known = {field.name for field in fields(instance)} if is_dataclass(instance) else set()
    cls = type(instance)
    hidden = [
        name
        for name in getattr(instance, "__dict__", {})
        if name not in known and not isinstance(getattr(cls, name, None), cached_property)
    ]
    if hidden:
        raise ValueError(
            f"{kind} = {cls.__qualname__}(…) has attributes that no run records, {', '.join(hidden)}: "
            "make it a frozen dataclass with a field for each"
        )


def _model(given: Any) -> tuple[Component, Any]:
    if isinstance(given, nn.Module):
        require_copyable(given)
        return Component(object_name(type(given))), given
    if not callable(given):
        raise ValueError(f"model = {given!r} is not allowed: it must be a name, an nn.Module or a factory")
    registered = next((name for name, known in MODELS.items() if known is given), None)
    name = registered or import_path(given)
    return _with_object(name, given)


READERS: dict[str, Callable[[Any], tuple[Component, Any]]] = {
    **{kind: partial(_component, kind) for kind in REGISTRIES},
    "partition": _partition,
    "model": _model,
}


def _with_object(name: str, given: Any, options: dict[str, object] | None = None) -> tuple[Component, Any]:
    """The component as text, and the object itself if text cannot rebuild it."""
    return Component(name, options or {}), given if name.startswith(OBJECT) else None


def _title(dataset: object) -> str:
    """Return the name of a data object."""
    if isinstance(dataset, (tuple, list, Mapping)) and not hasattr(dataset, "column_names"):
        return "clients" if isinstance(dataset, list) else "arrays"
    return str(getattr(dataset, "name", None) or type(dataset).__name__)


def options_of(instance: object) -> dict[str, object]:
    """Return the fields of a dataclass in TOML types, or as descriptions where TOML has no type; else nothing."""
    if not is_dataclass(instance):
        return {}
    values = {field.name: getattr(instance, field.name) for field in fields(instance)}
    return {key: _plain(value) for key, value in values.items() if value is not None}


def _plain(value: object) -> object:
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (np.ndarray, Tensor)):
        array = np.ascontiguousarray(value)
        digest = hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()
        return f"{array.dtype} of shape {array.shape}#{digest}"
    return repr(value)


def _rebuilds(instance: Any) -> bool:
    """Return whether an equal object can be rebuilt from its class and its options as text."""
    if not is_dataclass(instance):
        return not vars(instance)
    try:
        return bool(make(type(instance), options_of(instance), "") == instance)
    except (ValueError, TypeError):
        return False


def with_options(instance: T, options: Mapping[str, object], where: str) -> T:
    """Return the object with the given options applied."""
    own = options_of(instance)
    changed = {key: value for key, value in options.items() if own.get(key) != value}
    if not changed:
        return instance
    kinds = field_types(type(instance)) if is_dataclass(instance) else {}
    for key in changed:
        if key not in own and key not in kinds:
            raise not_an_option(where, key, own, instance)
    checked = {key: convert(value, kinds[key], f"{where}.{key}") for key, value in changed.items()}
    return replace(instance, **checked)  # type: ignore[type-var]
