"""A method or another component as it is typed: `NAME`, or `NAME[option=value, …]`."""

from collections.abc import Mapping
from dataclasses import replace

from fedwcm.config.options import parse_value
from fedwcm.config.recipes import RECIPES
from fedwcm.config.schema import Component
from fedwcm.config.settings import Settings


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
    return settings | dotted(options)


def dotted(options: Mapping[str, object]) -> Settings:
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
