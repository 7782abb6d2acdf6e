"""What the options are, as a user is told of them, and their short names: flags, and keywords of the functions."""

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from fedwcm.config.options import describe
from fedwcm.config.schema import COMPONENTS, PARTITION_DEFAULTS, SECTIONS, Component, Config
from fedwcm.config.settings import (
    Settings,
    component_settings,
    from_settings,
    method_settings,
    named_options,
    overlay,
    read_toml,
    spoken,
    to_dotted,
)
from fedwcm.core.checks import unknown
from fedwcm.utils.field_types import field_types, flag_names

NAMES_OF_COMPONENTS = {
    "partition": "how samples are divided among clients: `fedwcm list partitions`",
    "model": "the network: `fedwcm list models`, or package.module:factory",
    "method": "the method: `fedwcm list methods`, or package.module:Name",
    "loss": "the clients' loss: `fedwcm list losses`, or package.module:Name",
    "sampler": "how clients draw their batches: `fedwcm list samplers`, or package.module:Name",
}


@dataclass(frozen=True)
class OptionDoc:
    """An option, as a user is told of it."""

    key: str
    kind: str
    default: str
    about: str


def option_docs(cls: type[Any], section: str) -> list[OptionDoc]:
    """Return the options of a dataclass under their dotted names."""
    kinds = field_types(cls)
    return [
        OptionDoc(
            f"{section}.{field.name}", describe(kinds[field.name]), default_text(field), about(cls, field.name)
        )
        for field in fields(cls)
        if field.init
    ]


@cache
def all_options() -> tuple[OptionDoc, ...]:
    """Return every dotted option that does not depend on the chosen method, loss, sampler, model or partition."""
    return tuple(
        doc for section in fields(Config) if section.name != "source" for doc in _of_section(section.name)
    )


def _of_section(section: str) -> list[OptionDoc]:
    if section in SECTIONS:
        return option_docs(SECTIONS[section], section)
    name = getattr(Config(), section).name
    return [OptionDoc(f"{section}.name", "text", name, NAMES_OF_COMPONENTS[section])]


def default_of(key: str) -> str:
    """Return the default of a dotted option as text; empty if it has none."""
    section, _, option = key.partition(".")
    if section == "partition" and option in PARTITION_DEFAULTS:
        return str(PARTITION_DEFAULTS[option])
    return next((doc.default for doc in all_options() if doc.key == key), "")


def kind_of(key: str) -> str:
    """Return the type of a dotted option in words; of the options of partitions too, which flags have."""
    section, _, option = key.partition(".")
    if section == "partition" and option in PARTITION_OPTIONS:
        return PARTITION_OPTIONS[option][0]
    return next((doc.kind for doc in all_options() if doc.key == key), "")


PARTITION_OPTIONS = {
    "clients": ("a whole number", "number of clients."),
    "beta": ("a number", "Dirichlet concentration: smaller is more heterogeneous."),
    "classes_per_client": ("a whole number", "classes that each client holds."),
    "min_samples": ("a whole number", "samples that every client has at least."),
    "tau_ratio": ("a number", "size of the blocks that are dealt out, over that of the rarest class."),
}
"""The options of partitions: what is allowed, and the meaning. What the data determine is not among them."""


def about(cls: type[Any], option: str) -> str:
    """Return what a docstring, of the class or its nearest parent, says of an option; empty if none does."""
    for base in cls.__mro__:
        text = inspect.getdoc(base) or ""
        match = re.search(rf"^    {option}: (.+(?:\n {{8,}}\S.*)*)", text, re.MULTILINE)
        if match:
            return " ".join(match[1].split())
    return ""


def default_text(field: Any) -> str:
    """Return the default of a dataclass field, as it would be typed; empty for a required field."""
    if field.default is MISSING:
        return ""
    if field.default is None or field.default == ():
        return "none"
    if isinstance(field.default, tuple):
        return ",".join(map(str, field.default))
    return str(field.default).lower() if isinstance(field.default, bool) else str(field.default)


@dataclass(frozen=True)
class Option:
    """An option that has a flag and a keyword: its dotted name, and what it means in one clause."""

    key: str
    help: str


def declared_flags() -> dict[str, Option]:
    """Return the options that are marked with `Flag` where they are declared, and the names of components."""
    flags: dict[str, Option] = {}
    for section in (field.name for field in fields(Config)):
        if section in SECTIONS:
            for name, field in flag_names(SECTIONS[section]).items():
                flags[name] = Option(f"{section}.{field}", _clause(about(SECTIONS[section], field)))
        elif section in COMPONENTS and section != "method":
            flags[section] = Option(f"{section}.name", NAMES_OF_COMPONENTS[section] + "; options in brackets")
        for name in PARTITION_DEFAULTS if section == "partition" else ():
            flags[name] = Option(f"partition.{name}", _clause(PARTITION_OPTIONS[name][1]))
    return flags


def _clause(text: str) -> str:
    """Return what comes before the first semicolon or full stop."""
    return re.split(r"[;.](?:\s|$)", text, maxsplit=1)[0].replace("`", "")


FLAGS = declared_flags()


def is_partition_flag(name: str, option: Option) -> bool:
    """Return whether an option affects how the data are divided."""
    divides = option.key.split(".")[0] in ("data", "partition") and name not in ("augment", "normalize")
    return divides or name == "seed"


PARTITION_FLAGS = tuple(name for name, option in FLAGS.items() if is_partition_flag(name, option))
"""Flags that affect how the data are divided."""

COMPARE_FLAGS = tuple(name for name in FLAGS if name != "seed")
"""Flags of a comparison, which has its own list of seeds."""

SEEDS = "the seeds of the runs are seeds=… (--seeds)"


def option_key(name: str) -> str:
    """Return the dotted name of an option that is given by its flag, or by its dotted name."""
    if name in FLAGS:
        return FLAGS[name].key
    if "." not in name:
        raise unknown("option", name, FLAGS)
    return name


def settings_from(
    method: str | Component | None,
    config: str | Path | Config | None,
    settings: Mapping[str, object] | None,
    flags: Mapping[str, object],
) -> Settings:
    """Return all that was said: flags and settings on top of a file or a configuration.

    Raises:
        ValueError: a flag and a setting give the same option two values.
    """
    merged: Settings = {}
    if isinstance(config, Config):
        merged = spoken(config)
    elif config is not None:
        merged = read_toml(Path(config))
    if isinstance(method, Component):
        merged = overlay(merged, component_settings("method", method))
    elif method is not None:
        merged = overlay(merged, {**method_settings(method), "run.name": method})
    short, dotted = _short(flags), dict(settings or {})
    merged = overlay(merged, merge_once([*short.items(), *dotted.items()]))
    return _rename_changed(method, merged) if isinstance(method, str) else merged


def merge_once(pairs: Iterable[tuple[str, object]]) -> Settings:
    """Return the options of these pairs; one that has two different values is an error."""
    merged: Settings = {}
    for key, value in pairs:
        if key in merged and not _same(merged[key], value):
            raise ValueError(f"{key} is given twice, as {merged[key]!r} and as {value!r}: leave out one of them")
        merged[key] = value
    return merged


def _same(one: object, other: object) -> bool:
    return one is other or repr(one) == repr(other) or (isinstance(one, int | float) and one == other)


def refuse_varied(
    varied: Iterable[str], by: str, settings: Mapping[str, object] | None, flags: Mapping[str, object]
) -> None:
    """Refuse an option that is varied, by a grid or a search, and has a value from elsewhere as well.

    Args:
        varied: options, by flag or dotted name.
        by: what varies them, for the error.
        settings: dotted options that were given.
        flags: short options that were given.
    """
    values, seen = {**_short(flags), **(settings or {})}, set[str]()
    if "run.seed" in values:
        raise ValueError(f"run.seed = {values['run.seed']!r} is not allowed: {SEEDS}")
    for name in varied:
        key = option_key(name)
        if key == "run.seed":
            raise ValueError(f"{by} varies run.seed: {SEEDS}")
        if key in values:
            raise ValueError(f"{key} = {values[key]!r} is given, and {by} varies it: leave it out of one of them")
        if key in seen:
            raise ValueError(f"{by} has {key} twice, by its short and its dotted name: leave out one of them")
        seen.add(key)


def _rename_changed(method: str, merged: Settings) -> Settings:
    """Name in brackets what other options have changed of a method or recipe: `fedavg[loss.name=focal]`."""
    own = method_settings(method)
    changed = {key: merged[key] for key, value in own.items() if key in merged and merged[key] != value}
    if merged.get("run.name") != method or not changed:
        return merged
    name, options = named_options(method)
    text = ", ".join(
        f"{key.removeprefix('method.')}={value}" for key, value in (to_dotted(options) | changed).items()
    )
    return {**merged, "run.name": f"{name}[{text}]"}


def _short(flags: Mapping[str, object]) -> Settings:
    """Return the dotted options of the flags that were given; a component may bring options in brackets."""
    short: Settings = {}
    for name, value in flags.items():
        if name not in FLAGS:
            raise unknown("option", name, FLAGS)
        if value is None:
            continue
        section, _, option = FLAGS[name].key.partition(".")
        if option == "name" and isinstance(value, (str, Component)):
            short |= component_settings(section, value)
        elif name == "drop" and isinstance(value, str):
            short["data.drop"] = column_names(value)
        else:
            short[FLAGS[name].key] = value
    return short


def column_names(text: str | None) -> list[str]:
    """Return the columns in a list `a,b`. An empty name is that of a column that has none: `,b`."""
    return [] if text is None else [name.strip() for name in text.split(",")]


def config_from(
    method: str | Component | None = None,
    config: str | Path | Config | None = None,
    settings: Mapping[str, object] | None = None,
    **flags: object,
) -> Config:
    """Return the configuration that a file, flags and dotted settings make together."""
    return from_settings(settings_from(method, config, settings, flags))
