"""A configuration as dotted settings, such as `local.lr`, and as a TOML file. Nothing here imports torch."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path

import tomli_w

from fedwcm.config.options import make, plain
from fedwcm.config.schema import COMPONENTS, SECTIONS, Component, Config
from fedwcm.core.checks import unknown

OBJECT = "object:"
"""Prefix of the name of an object that cannot be rebuilt from text."""

CLIENT_IDS = f"{OBJECT}client_ids"
"""The partition by the client of every sample, given as `clients=…`."""

Settings = dict[str, object]
"""Dotted options, such as `local.lr`; objects may take the place of names, as `Component` or as data."""


RESULT_NEUTRAL = (
    "data.data_dir",
    "data.shared",
    "run.name",
    "run.device",
    "run.backend",
    "run.workers",
    "run.worker_gpus",
    "run.ray_address",
    "run.spread",
    "run.checkpoint_every",
    "run.track",
    "run.profile",
    "privacy.key_holders",
    "privacy.min_contributors",
)
"""Options that do not change a run's result (beyond rounding), and may therefore change when it is resumed."""


RENAMED_METHODS: dict[object, str] = {"fedavg-m": "fedavg-cheng"}
"""Names of methods in folders of version 0.1, and those of today."""


def with_present_names(settings: Mapping[str, object]) -> Settings:
    """Return the settings of a run's folder with the names that methods have today."""
    method = settings.get("method.name")
    return {**settings, "method.name": RENAMED_METHODS[method]} if method in RENAMED_METHODS else dict(settings)


def decisive(settings: Mapping[str, object]) -> Settings:
    """Return the options on which a run's result depends.

    Without a share for validation, `run.select_by` is as older versions recorded it: their runs are the same.
    """
    kept = {key: value for key, value in with_present_names(settings).items() if key not in RESULT_NEUTRAL}
    if "run.select_by" in kept and not (kept.get("data.val_fraction") or kept.get("data.val_clients")):
        kept["run.select_by"] = "accuracy"
    return kept


def from_settings(settings: Mapping[str, object]) -> Config:
    """Return a configuration from dotted options, with defaults for the rest."""
    sections: dict[str, dict[str, object]] = {}
    for key, value in settings.items():
        section, _, option = key.partition(".")
        if section not in (*COMPONENTS, *SECTIONS) or not option:
            raise unknown("option", key, _known_keys())
        sections.setdefault(section, {})[option] = value
    parts: dict[str, object] = {}
    dataset = sections.get("data", {}).get("dataset")
    if dataset is not None and not isinstance(dataset, str):
        sections["data"]["dataset"], parts["source"] = f"{OBJECT}{title_of_data(dataset)}", dataset
    for section, values in sections.items():
        if section in SECTIONS:
            parts[section] = make(SECTIONS[section], values, section)
        else:
            chosen = values.pop("name", getattr(Config(), section).name)
            named = chosen if isinstance(chosen, Component) else Component(str(chosen))
            options = {key: value for key, value in values.items() if value is not None}
            parts[section] = replace(named, options={**named.options, **options})
    return Config(**parts)  # type: ignore[arg-type]


def title_of_data(dataset: object) -> str:
    """Return the name of a data object."""
    if isinstance(dataset, (tuple, list, Mapping)) and not hasattr(dataset, "column_names"):
        return "clients" if isinstance(dataset, list) else "arrays"
    return str(getattr(dataset, "name", None) or type(dataset).__name__)


def to_settings(config: Config) -> Settings:
    """Return all options of a configuration as text under dotted names, without those that are None."""
    settings: Settings = {}
    for section in (field.name for field in fields(config) if field.name != "source"):
        part = getattr(config, section)
        values = {"name": part.name, **part.options} if isinstance(part, Component) else plain(part)
        settings |= {f"{section}.{key}": value for key, value in values.items()}
    return settings


def spoken(config: Config) -> Settings:
    """Return all options of a configuration as `to_settings`, with its objects in place of their names."""
    settings = to_settings(config)
    for section in COMPONENTS:
        component: Component = getattr(config, section)
        settings[f"{section}.name"] = replace(component, options={})
    if config.source is not None:
        settings["data.dataset"] = config.source
    return settings


def text_of(settings: Settings) -> Settings:
    """Return settings with names in place of objects."""
    text = {key: value.name if isinstance(value, Component) else value for key, value in settings.items()}
    dataset = text.get("data.dataset", "")
    return text if isinstance(dataset, str) else {**text, "data.dataset": f"{OBJECT}{title_of_data(dataset)}"}


def name_in(settings: Mapping[str, object], section: str) -> str:
    """Return the name of a component in settings; empty if they do not name one."""
    chosen = settings.get(f"{section}.name", "")
    return chosen.name if isinstance(chosen, Component) else str(chosen)


def read_toml(path: Path) -> Settings:
    """Read the dotted options of a TOML file."""
    try:
        sections = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist: it must be a TOML file") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder: it must be a TOML file") from None
    except (ValueError, RecursionError) as error:  # not TOML, not text, or nested without end
        raise ValueError(f"{path} is not TOML: {error}") from None
    settings: Settings = {}
    for section, values in sections.items():
        if not isinstance(values, dict):
            raise unknown(f"section in {path}:", section, (*COMPONENTS, *SECTIONS))
        settings |= {f"{section}.{key}": value for key, value in values.items()}
    return settings


def write_toml(config: Config, path: Path) -> None:
    """Write a configuration to a TOML file, from which `read_toml` restores it."""
    sections: dict[str, dict[str, object]] = {}
    for key, value in to_settings(config).items():
        section, _, option = key.partition(".")
        sections.setdefault(section, {})[option] = value
    path.write_text(tomli_w.dumps(sections), encoding="utf-8")


EXCLUSIVE = ("local.epochs", "local.steps")
"""Two options of which a run has one: the one that is given later replaces the other."""


def overlay(below: Mapping[str, object], above: Mapping[str, object]) -> Settings:
    """Merge settings, `above` taking precedence; a component that changes its name loses its old options.

    Options of a component that has no name yet are for whichever is named.
    """
    merged = dict(below)
    for section in COMPONENTS:
        one, other = name_in(above, section), name_in(below, section)
        if one and other and one != other:
            merged = {key: value for key, value in merged.items() if not key.startswith(f"{section}.")}
            if section == "method":
                merged.pop("run.name", None)  # it named the old method
    for one, other in (EXCLUSIVE, EXCLUSIVE[::-1]):
        if above.get(one) is not None:
            merged.pop(other, None)
    return {**merged, **above}


def differences(config: Config, other: Config) -> list[str]:
    """Return the differences between two configurations that affect the result, one line per option."""
    ours, theirs = decisive(to_settings(config)), decisive(to_settings(other))
    keys: Iterable[str] = sorted({*ours, *theirs})
    return [
        f"{key}: {ours.get(key, 'none')} is now {theirs.get(key, 'none')}"
        for key in keys
        if ours.get(key) != theirs.get(key)
    ]


def _known_keys() -> list[str]:
    known = [f"{section}.name" for section in COMPONENTS]
    for section, cls in SECTIONS.items():
        known += [f"{section}.{f.name}" for f in fields(cls)]
    return known
