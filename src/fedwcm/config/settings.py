"""A configuration as dotted settings (`local.lr`), as TOML, and as it is typed: `NAME[option=value]`. No torch."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import tomli_w

from fedwcm.config.options import make, parse_value, plain
from fedwcm.config.recipes import RECIPES
from fedwcm.config.schema import COMPONENTS, SECTIONS, Component, Config
from fedwcm.core.checks import require_allowed, unknown
from fedwcm.core.ranges import Count, Positive

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
    "run.metrics",
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


LATER = ("data.server_fraction", "data.server_before_tail", "data.val_draw")
"""Options that older folders do not have, and that are 0 or false by default."""


def decisive(settings: Mapping[str, object]) -> Settings:
    """Return the options on which a run's result depends.

    Without a share for validation, `run.select_by` is as older versions recorded it, and options that they did not
    have are missing where they change nothing. So their runs are the same.
    """
    kept = {key: value for key, value in with_present_names(settings).items() if key not in RESULT_NEUTRAL}
    kept = {key: value for key, value in kept.items() if value or key not in LATER}
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


def object_settings(config: Config) -> Settings:
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


def load_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file; an error names the file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist: it must be a TOML file") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder: it must be a TOML file") from None
    except (ValueError, RecursionError) as error:  # not TOML, not text, or nested without end
        raise ValueError(f"{path} is not TOML: {error}") from None


def read_toml(path: Path) -> Settings:
    """Read the dotted options of a TOML file."""
    settings: Settings = {}
    for section, values in load_toml(path).items():
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


def component_settings(section: str, chosen: str | Component) -> Settings:
    """Return the settings of a component given as `NAME`, `NAME[option=value, …]`, or name and options."""
    name: str | Component
    if isinstance(chosen, Component):
        name, options = chosen.name if chosen.value is None else replace(chosen, options={}), chosen.options
    else:
        name, options = named_options(chosen)
    return {f"{section}.name": name, **{f"{section}.{key}": value for key, value in options.items()}}


def method_settings(spec: str) -> Settings:
    """Return the settings of `NAME` or `NAME[option=value, …]`, with the name of a method or a recipe.

    An option without a dot belongs to the method; with a dot it can be any option (`fedavg[local.lr=0.03]`).
    """
    name, options = named_options(spec)
    recipe = RECIPES.get(name)
    settings: Settings = dict(recipe.settings) if recipe else {"method.name": name}
    return settings | to_dotted(options)


def to_dotted(options: Mapping[str, object]) -> Settings:
    """Return the options of a method's brackets under their dotted names."""
    return {key if "." in key else f"method.{key}": value for key, value in options.items()}


def named_options(spec: str) -> tuple[str, Settings]:
    """Parse `NAME` or `NAME[option=value, …]` into the name and the options."""
    name, bracket, inside = spec.strip().partition("[")
    if bracket and not inside.endswith("]"):
        options, closed, after = inside.rpartition("]")
        if closed:
            raise ValueError(f"{spec!r}: the brackets come last: {name}{after}[{options}]")
        raise ValueError(f"{spec!r}: the bracket is not closed")
    return name, dict(parse_assignment(assignment) for assignment in split_list(inside.removesuffix("]")))


def parse_assignment(text: str) -> tuple[str, object]:
    """Parse `key=value` with a TOML value."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError(f"{text!r} is not of the form key=value")
    return key.strip(), parse_value(value.strip())


def split_list(text: str) -> list[str]:
    """Split at commas that are not inside brackets."""
    items, depth, current = [], 0, ""
    for char in text:
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            items.append(current)
            current = ""
        else:
            current += char
    return [item.strip() for item in [*items, current] if item.strip()]


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """How a client fine-tunes the model.

    Args:
        epochs: passes over the client's training samples.
        layers: `all`, or `head`: the final linear layer alone.
        lr: learning rate; by default the run's, `local.lr`.
    """

    epochs: Count = 1
    layers: Literal["all", "head"] = "all"
    lr: Positive | None = None

    def __post_init__(self) -> None:
        require_allowed(self)

    @classmethod
    def parse(cls, text: str) -> "FineTuning":
        """Parse `epochs=1,layers=head`."""
        return make(cls, dict(parse_assignment(item) for item in split_list(text)), "personalize")
