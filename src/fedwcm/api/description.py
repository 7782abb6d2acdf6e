"""What a call says, by names and objects, files and settings: as dotted settings, and as one `Config`.

An object that text can rebuild (a method of this package, an importable class) becomes text. Any other is
described by its class and options (`object:__main__.MyMethod`), and the configuration holds it. Here it is decided
whose code may be imported: what the user named is trusted, what only a run's folder names is not, because the
folder may come from someone else.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cached_property, partial
from inspect import isfunction
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedwcm.api.arguments import ConfigLike, MethodLike, MethodsLike
from fedwcm.config.flags import settings_from
from fedwcm.config.options import NamedObject, make
from fedwcm.config.recipes import AUTO, expand_sets
from fedwcm.config.resolve import import_path, object_name
from fedwcm.config.schema import COMPONENTS, Component, Config
from fedwcm.config.settings import CLIENT_IDS, OBJECT, Settings, from_settings, name_in, object_settings, overlay
from fedwcm.core.batch import Sampler
from fedwcm.core.checks import require
from fedwcm.core.loss import Loss
from fedwcm.core.method import Method
from fedwcm.data.partition import PARTITIONS, Partition
from fedwcm.engine.participation import PARTICIPATIONS, Participation
from fedwcm.experiment.components import options_of
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.trackers import Tracker
from fedwcm.losses import LOSSES
from fedwcm.methods import METHODS
from fedwcm.models import MODELS
from fedwcm.models.checks import require_copyable
from fedwcm.samplers import SAMPLERS
from fedwcm.sweeps.plan import method_list

CONNECTING = ("run.ray_address",)
"""Options by which a machine connects to another, which could run code on it."""

LISTED_OBJECTS = {"metrics": "a name, or a function of a fedwcm.Evaluated", "track": "a name, or a fedwcm.Tracker"}
"""Keywords with lists of names, in which objects may stand, too."""

KINDS: dict[str, tuple[Mapping[str, Any], Any]] = {
    "method": (METHODS, Method),
    "loss": (LOSSES, Loss),
    "sampler": (SAMPLERS, Sampler),
    "sampling": (PARTICIPATIONS, Participation),
    "partition": (PARTITIONS, Partition),
}
"""Keywords that take a component: the classes that have a name, and the public class of all of them."""


def describe_settings(
    method: Any,
    config: ConfigLike | None,
    settings: Mapping[str, object] | None,
    flags: Mapping[str, Any],
    *,
    trust: bool = False,
) -> Settings:
    """Return what is said by names and objects, a file and dotted settings.

    A configuration file is trusted, unless a run wrote it into its folder, which may come from someone else.
    """
    named = describe_objects({**flags, "method": method})
    method = named.pop("method")
    merged = settings_from(method, config, settings, named)
    if trust or not isinstance(config, (str, Path)) or not _left_by_a_run(Path(config)):
        return merged
    return _without_trust(merged, settings_from(method, None, settings, named), Path(config).parent)


def describe_run(
    method: Any,
    config: ConfigLike | None,
    settings: Mapping[str, object] | None,
    flags: Mapping[str, Any],
    *,
    trust: bool = False,
    resume: bool = False,
    folder: RunFolder | None = None,
) -> Config:
    """Return the run that is asked for; what is not said again of the folder's run, to resume, keeps its value."""
    if isinstance(config, Config) and method is None and not (settings or flags or resume):
        return config
    own = describe_settings(method, config, settings, flags, trust=trust)
    if not resume:
        return from_settings(own)
    if folder is None or not folder.holds_run:
        if not own.keys() & {"method.name", "data.dataset"}:  # all of it would be defaults
            if folder is not None:
                folder.refuse_search()
            where = "out" if folder is None else folder.path
            raise ValueError(f"{where} holds no run to resume; to start one, say which: a method or a data set")
        return from_settings(own)
    below = _without_objects(object_settings(folder.config(trust=True)))
    below.pop("run.device", None)
    return from_settings(overlay(below if trust else _without_trust(below, own, folder.path), own))


def _left_by_a_run(path: Path) -> bool:
    folder = RunFolder(path.parent)
    left = (folder.metrics_file, folder.summary_file, folder.partition_file, folder.model_file, folder.checkpoints)
    return path.name == folder.config_file.name and any(file.exists() for file in left)


def _without_objects(settings: Settings) -> Settings:
    """Return the settings of a folder without the metrics and trackers that were objects: give them again."""
    kept = dict(settings)
    for keyword in LISTED_OBJECTS:
        names = kept.get(f"run.{keyword}")
        if isinstance(names, list):
            kept[f"run.{keyword}"] = [name for name in names if not name.startswith(OBJECT)]
    return kept


def _without_trust(settings: Settings, own: Settings, folder: Path) -> Settings:
    """Return the settings with what only the folder says: code not trusted, addresses left out."""
    kept = dict(settings)
    for section in COMPONENTS:
        if (key := f"{section}.name") in settings and key not in own:
            kept[key] = Component(name_in(settings, section), trusted=False)
    code = (key for key in ("run.metrics", "participation.sampling") if ":" in str(settings.get(key)))
    for key in (*CONNECTING, *code):
        if settings.get(key) is not None and key not in own:
            text = f"{key} = {kept.pop(key)!r:.100} of {folder} is not used: name it again, or trust the folder"
            warnings.warn(f"{text} (trust=True, --trust)", stacklevel=4)
    return kept


def describe_methods(methods: MethodsLike) -> list[tuple[str, Settings]]:
    """Return the label and the settings of each of several methods, those of a set of recipes one by one."""
    if isinstance(methods, Mapping):
        require(bool(methods), "methods", dict(methods), "at least one method by name")
        return [(str(name), _describe_named(str(name), value)) for name, value in methods.items()]
    listed = method_list(methods)
    require(AUTO not in listed, "methods", AUTO, "methods and recipes by name: auto is for a single run")
    return [
        (method if isinstance(method, str) else object_label(method), describe_settings(method, None, None, {}))
        for method in expand_sets(listed)
    ]


def _describe_named(name: str, value: MethodLike | Mapping[str, object]) -> Settings:
    """Return the settings of a method with a name of its own, and with options: keywords or dotted names."""
    options = dict(value) if isinstance(value, Mapping) else {"method": value}
    require("method" in options, f"methods[{name!r}]", value, "a method, or options with one as 'method'")
    return describe_settings(options.pop("method"), None, None, options)


def describe_objects(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords with components described, and paths and numbers in plain types."""
    text = {key: value.item() if isinstance(value, np.generic) else value for key, value in objects.items()}
    for kind, describe in DESCRIBE.items():
        if not isinstance(objects.get(kind), (str, Component, type(None))):
            text[kind] = describe(objects[kind])
    for keyword, allowed in LISTED_OBJECTS.items():
        if not isinstance(objects.get(keyword), (str, type(None))):
            text[keyword] = [_describe_item(keyword, item, allowed) for item in objects[keyword]]
    for place in ("dataset", "data_dir"):
        if isinstance(objects.get(place), Path):
            text[place] = str(objects[place])
    if not isinstance(text.get("clients"), (int, str, type(None))):
        if text.pop("partition", None) is not None:
            raise ValueError("clients=… assigns every sample to a client, which is a partition: omit partition")
        allowed = "a whole number, or the client of every training sample"
        require(not isinstance(text["clients"], float), "clients", text["clients"], allowed)
        text["partition"] = Component(CLIENT_IDS, value=text.pop("clients"))
    return text


def _describe_item(keyword: str, item: Any, allowed: str) -> str:
    """Return a name as it is, and any other object under its name."""
    if isinstance(item, str):
        return item
    fits = callable(item) if keyword == "metrics" else isinstance(item, Tracker)
    require(fits, keyword, item, allowed)
    return NamedObject(import_path(item) if isfunction(item) else object_name(type(item)), item)


def _describe_component(kind: str, component: Any) -> Component:
    """Return a component as text, with the object itself unless text is enough."""
    known, base = KINDS[kind]
    cls: Any = component if isinstance(component, type) else type(component)
    needed: Any = Callable if kind == "partition" else base  # a protocol, from which no class needs to derive
    require(issubclass(cls, needed), kind, component, f"a name, or a fedwcm.{base.__name__} or its class")
    if isfunction(component):
        return _with_object(import_path(component), component)
    names = (getattr(cls, "name", ""), *known)  # the first is that of a composed method, too
    name = next((one for one in names if one in known and known[one] is cls), None) or import_path(cls)
    if isinstance(component, type):
        return _with_object(name, component)
    _refuse_hidden(kind, component)
    if not _rebuilds(component) or (kind == "partition" and not is_dataclass(component)):
        name = object_name(cls)
    return _with_object(name, component, options_of(component))


def _describe_choice(choice: Any) -> str:
    """Return a choice of clients as text, with the object itself unless text is enough."""
    component = _describe_component("sampling", choice)
    text = component.name + _brackets(choice)
    if component.value is None:
        return text
    return NamedObject(text, choice() if isinstance(choice, type) else choice)


def method_text(method: str | Method | type[Method]) -> str:
    """Return a method as it is typed: `NAME[option=value]`; ValueError for an object that text cannot rebuild."""
    if isinstance(method, str):
        return method
    component = _describe_component("method", method)
    if component.value is not None:
        raise ValueError(
            f"methods = {method!r:.200} is not allowed: a search names its methods, so that it must be of a class "
            "that can be imported"
        )
    return component.name + _brackets(method)


def object_label(method: Method | type[Method]) -> str:
    """Return the label of a method object in a comparison: `MyMethod[alpha=0.2]`."""
    return Config(method=_describe_component("method", method)).title + _brackets(method)


def _brackets(method: Any) -> str:
    """Return the options of a method, or of a choice of clients, that are not its defaults."""
    if isinstance(method, type) or not is_dataclass(method):
        return ""
    defaults = {field.name: field.default for field in fields(method)}
    changed = [
        f"{key}={value}" for key, value in options_of(method).items() if getattr(method, key) != defaults[key]
    ]
    return f"[{', '.join(changed)}]" if changed else ""


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


def _describe_model(model: Any) -> Component:
    if isinstance(model, nn.Module):
        require_copyable(model)
        return Component(object_name(type(model)), value=model)
    require(callable(model), "model", model, "a name, an nn.Module or a factory")
    name = next((name for name, known in MODELS.items() if known is model), None) or import_path(model)
    return _with_object(name, model)


DESCRIBE: dict[str, Callable[[Any], Component | str]] = {
    **{kind: partial(_describe_component, kind) for kind in KINDS},
    "model": _describe_model,
    "sampling": _describe_choice,
}


def _with_object(name: str, component: Any, options: dict[str, object] | None = None) -> Component:
    """Return the component as text, with the object itself if text cannot rebuild it."""
    return Component(name, options or {}, component if name.startswith(OBJECT) else None)


def _rebuilds(instance: Any) -> bool:
    """Return whether an equal object can be rebuilt from its class and its options as text."""
    if not is_dataclass(instance):
        return not vars(instance)
    try:
        return bool(make(type(instance), options_of(instance), "") == instance)
    except (ValueError, TypeError):
        return False
