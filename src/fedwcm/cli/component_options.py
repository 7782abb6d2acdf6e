"""The options of methods, losses, samplers, partitions and models, with those that have each of them."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass

from fedwcm.config.option_docs import PARTITION_OPTIONS, OptionDoc, default_of, option_docs
from fedwcm.core.checks import shortened

MOST_NAMED = 4
"""Largest number of components with an option that are all named."""


def documented_options(component: Callable[..., object], section: str) -> list[OptionDoc]:
    """The options of one component: the fields of a dataclass, or the keywords of a model or a partition."""
    if section == "model":
        from fedwcm.models import MODEL_OPTIONS

        return _keywords(component, section, MODEL_OPTIONS)
    if section == "partition":
        return _keywords(component, section, PARTITION_OPTIONS)
    return option_docs(component, section) if isinstance(component, type) and is_dataclass(component) else []


def shared_options(components: Mapping[str, Callable[..., object]], section: str) -> list[tuple[OptionDoc, str]]:
    """All options of these components, each with the names of those that have it."""
    owners: dict[OptionDoc, list[str]] = {}
    for name, component in components.items():
        for option in documented_options(component, section):
            owners.setdefault(option, []).append(name)
    ordered = sorted(owners.items(), key=lambda item: item[0].key)
    return [(option, shortened(names, MOST_NAMED)) for option, names in ordered]


def _keywords(
    factory: Callable[..., object], section: str, known: Mapping[str, tuple[str, str]]
) -> list[OptionDoc]:
    """The keywords of a factory that are options, with the kind and meaning that are known of them."""
    parameters = inspect.signature(factory).parameters
    return [
        OptionDoc(f"{section}.{name}", kind, _default(f"{section}.{name}", parameters[name]), about)
        for name, (kind, about) in known.items()
        if name in parameters
    ]


def _default(key: str, parameter: inspect.Parameter) -> str:
    if parameter.default is inspect.Parameter.empty:
        return default_of(key)
    return (
        ",".join(map(str, parameter.default)) if isinstance(parameter.default, tuple) else str(parameter.default)
    )
