"""The options with their types, defaults and meanings; those with a flag; and the settings that a call gives."""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

from fedwcm.config.options import describe
from fedwcm.config.schema import PARTITION_DEFAULTS, SECTIONS, Component, Config
from fedwcm.config.settings import (
    Settings,
    component_settings,
    from_settings,
    method_settings,
    named_options,
    object_settings,
    overlay,
    read_toml,
    to_dotted,
)
from fedwcm.core.checks import require, unknown
from fedwcm.core.ranges import field_ranges
from fedwcm.utils.field_types import field_types, flag_names

COMPONENT_NAMES = {
    "partition": "how samples are divided among clients, options in brackets: `fedwcm list partitions`",
    "model": "the network, options in brackets: `fedwcm list models`, or package.module:factory",
    "method": "the method, options in brackets: `fedwcm list methods`, or package.module:Name",
    "loss": "the clients' loss, options in brackets: `fedwcm list losses`, or package.module:Name",
    "sampler": "how clients draw batches, options in brackets: `fedwcm list samplers`, or package.module:Name",
}

PARTITION_OPTIONS = {
    "clients": ("a whole number", "number of clients."),
    "beta": ("a number", "Dirichlet concentration: smaller is more heterogeneous."),
    "classes_per_client": ("a whole number", "classes that each client holds."),
    "min_samples": ("a whole number", "samples that every client has at least."),
    "tau_ratio": ("a number", "size of the blocks that are dealt out, over that of the rarest class."),
}
"""The options of partitions: what is allowed, and the meaning. What the data determine is not among them."""


@dataclass(frozen=True)
class Option:
    """An option: its dotted name, its type, default and meaning in words, and its flag; empty without one."""

    key: str
    kind: str
    default: str
    about: str
    flag: str = ""

    @property
    def help(self) -> str:
        """The meaning up to the first semicolon or full stop."""
        return re.split(r"[;.](?:\s|$)", self.about, maxsplit=1)[0].replace("`", "")


def class_options(cls: type[Any], section: str) -> list[Option]:
    """Return the options of a dataclass under their dotted names."""
    kinds, ranges = field_types(cls), field_ranges(cls)
    return [
        Option(
            f"{section}.{field.name}",
            describe(kinds[field.name]) + (f", {ranges[field.name]}" if field.name in ranges else ""),
            default_text(field.default),
            about(cls, field.name),
        )
        for field in fields(cls)
        if field.init
    ]


def about(cls: type[Any], option: str) -> str:
    """Return what a docstring, of the class or its nearest parent, says of an option; empty if none does."""
    for base in cls.__mro__:
        text = inspect.getdoc(base) or ""
        match = re.search(rf"^    {option}: (.+(?:\n {{8,}}\S.*)*)", text, re.MULTILINE)
        if match:
            return " ".join(match[1].split())
    return ""


def default_text(default: object) -> str:
    """Return the default of an option, as it would be typed; empty for a required one."""
    if default is MISSING:
        return ""
    if default is None or default == ():
        return "none"
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return str(default).lower() if isinstance(default, bool) else str(default)


def _declared_options() -> Iterator[Option]:
    """Yield the options of all sections; those marked with `Flag`, and the names of components, have a flag."""
    for section in (field.name for field in fields(Config) if field.name != "source"):
        if section in SECTIONS:
            flags = {f"{section}.{field}": flag for flag, field in flag_names(SECTIONS[section]).items()}
            for option in class_options(SECTIONS[section], section):
                yield replace(option, flag=flags.get(option.key, ""))
            continue
        flag, default = "" if section == "method" else section, getattr(Config(), section).name
        yield Option(f"{section}.name", "text", default, COMPONENT_NAMES[section], flag)
        for name, (kind, meaning) in PARTITION_OPTIONS.items() if section == "partition" else ():
            flag = name if name in PARTITION_DEFAULTS else ""
            yield Option(f"partition.{name}", kind, str(PARTITION_DEFAULTS.get(name, "")), meaning, flag)


OPTIONS = {option.key: option for option in _declared_options()}
"""Every dotted option that does not depend on the chosen method, loss, sampler or model."""

FLAGS = {option.flag: option for option in OPTIONS.values() if option.flag}
"""The options that have a flag, which is a keyword of the functions as well, by its name."""

PARTITION_FLAGS = tuple(
    name
    for name, option in FLAGS.items()
    if name == "seed" or (option.key.startswith(("data.", "partition.")) and name not in ("augment", "normalize"))
)
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
        merged = object_settings(config)
    elif config is not None:
        merged = read_toml(Path(config))
    if isinstance(method, Component):
        merged = overlay(merged, component_settings("method", method))
    elif method is not None:
        merged = overlay(merged, {**method_settings(method), "run.name": method})
    allowed = "a mapping of dotted options, such as {'local.lr': 0.1}"
    require(settings is None or isinstance(settings, Mapping), "settings", settings, allowed)
    short, dotted = _settings_of_flags(flags), dict(settings or {})
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
    values, seen = {**_settings_of_flags(flags), **(settings or {})}, set[str]()
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


def _settings_of_flags(flags: Mapping[str, object]) -> Settings:
    """Return the dotted options of the flags that were given; a component may bring options in brackets."""
    pairs: list[tuple[str, object]] = []
    for name, value in flags.items():
        key = option_key(name)
        section, _, option = key.partition(".")
        if name in FLAGS and option == "name" and isinstance(value, (str, Component)):
            pairs += component_settings(section, value).items()
        elif name == "drop" and isinstance(value, str):
            pairs.append((key, column_names(value)))
        elif value is not None:
            pairs.append((key, value))
    return merge_once(pairs)


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
