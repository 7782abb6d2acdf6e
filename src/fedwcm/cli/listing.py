"""`fedwcm list`: list what is available, or describe one entry."""

import argparse
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from fedwcm.cli.common import SubParsers, console
from fedwcm.config.flags import FLAGS, OPTIONS, PARTITION_OPTIONS, Option, class_options, default_text
from fedwcm.config.recipes import AUTO, CANDIDATES, RECIPES
from fedwcm.core.checks import shorten, unknown

SECTIONS = {
    "partitions": "partition",
    "models": "model",
    "methods": "method",
    "losses": "loss",
    "samplers": "sampler",
}
"""Lists of components, with the section that their options are in."""


def add_parser(commands: SubParsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "list",
        help="methods, data sets, models, options, …",
        description="List what is available, or describe one entry with its options.",
        examples=["fedwcm list methods", "fedwcm list methods fedwcm", "fedwcm list options local"],
    )
    parser.add_argument(
        "what", nargs="?", choices=sorted(LISTS), help="what to list; without it, the kinds of lists"
    )
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="an entry to describe with its options; of options, a section or flag",
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Print the names, each with one line about it; what can be listed; or one entry with its options."""
    what, name = arguments.what, arguments.name
    text, entries = ("", list_names(what)) if name is None else _describe(what, name)
    if text:
        print(text)
    _print_lines(entries)
    return 0


def list_names(what: str | None = None, name: str | None = None) -> dict[str, str]:
    """Return what is available, each name with one line about it.

    Args:
        what: `methods`, `recipes`, `losses`, `samplers`, `datasets`, `partitions`, `models`, `trackers` or
            `options`; without it, these kinds.
        name: an entry of that list, whose options are returned; of `options`, a section or flag.
    """
    if what is None:
        return {kind: about for kind, (about, _) in LISTS.items()}
    if what not in LISTS:
        raise unknown("list", what, LISTS)
    return LISTS[what][1]() if name is None else _describe(what, name)[1]


def _describe(what: str, name: str) -> tuple[str, dict[str, str]]:
    """Return the text about an entry, which may be empty, and its options."""
    if what == "options":
        return "", _options_called(name)
    if what in ("methods", "recipes") and name in RECIPES:  # --method takes both
        settings = {key: str(value) for key, value in RECIPES[name].settings.items()}
        return f"{RECIPES[name].description}\n\nsettings:", settings
    entries = LISTS["recipes" if name == AUTO and what == "methods" else what][1]()
    if name not in entries:
        raise unknown(what.removesuffix("s"), name, {*entries, *(RECIPES if what == "methods" else ())})
    if what not in SECTIONS or name == AUTO:
        return "", {name: entries[name]}
    component = _components_of(what)[name]
    options = {each.key: _meaning(each) for each in documented_options(component, SECTIONS[what])}
    return _page(what, component) + ("\n\noptions:" if options else ""), options


def _print_lines(entries: Mapping[str, str]) -> None:
    """Print two columns; the second is wrapped to the width of a terminal, and left as it is elsewhere."""
    if not entries:
        return
    lines = [(name, line) for name, about in entries.items() for line in about.split("\n")]
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for name, about in lines:
        table.add_row(Text(name), Text(about))
    if sys.stdout.isatty():
        console().print(table)
        return
    width = max(map(len, entries))
    for name, about in lines:
        print(f"{name:<{width}}  {about}")


def _options_called(name: str) -> dict[str, str]:
    """Return the options of a section, that of a flag, or the one of this dotted name."""
    flag, every = FLAGS.get(name.replace("-", "_")), _every_option()
    key = flag.key if flag else name
    chosen = {key: every[key]} if key in every else {k: v for k, v in every.items() if k.startswith(f"{name}.")}
    if not chosen:
        raise unknown("option, section or flag", name, [*every, *FLAGS])
    return chosen


def _meaning(option: Option, owners: str = "") -> str:
    default = f"default {option.default}" if option.default else "required"
    of = f"; of {owners}" if owners else ""
    return f"{option.about} [{option.kind}; {default}{of}]".strip()


def _every_option() -> dict[str, str]:
    """Return every dotted option; those of components after the option that names the component.

    An option that means different things to components has a line for each.
    """
    lists = {section: what for what, section in SECTIONS.items()}
    meanings: dict[str, str] = {}
    for option in OPTIONS.values():
        section, _, name = option.key.partition(".")
        if section not in lists or name == "name":
            meanings[option.key] = _meaning(option)
        if section in lists and name == "name":
            for own, owners in shared_options(_components_of(lists[section]), section):
                before = f"{meanings[own.key]}\n" if own.key in meanings else ""
                meanings[own.key] = before + _meaning(own, owners)
    return meanings


def _components_of(what: str) -> Mapping[str, Callable[..., Any]]:
    from fedwcm.data.partition import PARTITIONS
    from fedwcm.losses import LOSSES
    from fedwcm.methods import METHODS
    from fedwcm.models import MODELS
    from fedwcm.samplers import SAMPLERS

    components: dict[str, Mapping[str, Callable[..., Any]]] = {
        "models": MODELS,
        "methods": METHODS,
        "losses": LOSSES,
        "samplers": SAMPLERS,
        "partitions": PARTITIONS,
    }
    return components[what]


def _components(what: str) -> Callable[[], dict[str, str]]:
    return lambda: {name: _page(what, one).partition("\n")[0] for name, one in _components_of(what).items()}


def _datasets() -> dict[str, str]:
    from fedwcm.data import DATASETS, synthetic

    named = {name: entry.description for name, entry in DATASETS.items()}
    return {**named, synthetic.NAME: synthetic.DESCRIPTION}


def _trackers() -> dict[str, str]:
    from fedwcm.experiment.trackers import TRACKERS

    return {name: _page("trackers", cls).partition("\n")[0] for name, cls in TRACKERS.items()}


def _recipes() -> dict[str, str]:
    choice = f"the best of {', '.join(CANDIDATES)} on validation data"
    return {AUTO: choice, **{name: recipe.description for name, recipe in RECIPES.items()}}


def _page(what: str, component: Callable[..., object]) -> str:
    """Return what is written about a component: its docstring, or of one that has a file to itself the file's."""
    about = component if what in ("models", "partitions") else inspect.getmodule(component)
    return inspect.getdoc(about) or ""


LISTS: dict[str, tuple[str, Callable[[], dict[str, str]]]] = {
    "methods": ("federated methods, for --method", _components("methods")),
    "recipes": ("named combinations of a method, loss and sampler, for --method", _recipes),
    "losses": ("the clients' losses, for --loss", _components("losses")),
    "samplers": ("how clients draw their batches, for --sampler", _components("samplers")),
    "datasets": ("named data sets, for --dataset", _datasets),
    "partitions": ("how samples are divided among clients, for --partition", _components("partitions")),
    "models": ("networks, for --model", _components("models")),
    "trackers": ("experiment trackers, for --track", _trackers),
    "options": ("every dotted option, for --set, --grid and TOML files", _every_option),
}


MOST_NAMED = 4
"""Largest number of components with an option that are all named."""


def documented_options(component: Callable[..., object], section: str) -> list[Option]:
    """Return the options of a component: fields of a dataclass, or keywords of a model or a partition."""
    if section == "model":
        from fedwcm.models import MODEL_OPTIONS

        return _keywords(component, section, MODEL_OPTIONS)
    if section == "partition":
        return _keywords(component, section, PARTITION_OPTIONS)
    return class_options(component, section) if isinstance(component, type) and is_dataclass(component) else []


def shared_options(components: Mapping[str, Callable[..., object]], section: str) -> list[tuple[Option, str]]:
    """Return all options of these components, each with the names of those that have it."""
    owners: dict[Option, list[str]] = {}
    for name, component in components.items():
        for option in documented_options(component, section):
            owners.setdefault(option, []).append(name)
    ordered = sorted(owners.items(), key=lambda item: item[0].key)
    return [(option, shorten(names, MOST_NAMED)) for option, names in ordered]


def _keywords(factory: Callable[..., object], section: str, known: Mapping[str, tuple[str, str]]) -> list[Option]:
    """Return the keywords of a factory that are options, with the kind and meaning that are known of them."""
    options = []
    for name, parameter in inspect.signature(factory).parameters.items():
        if name in known:
            key, (kind, about) = f"{section}.{name}", known[name]
            common = OPTIONS[key].default if key in OPTIONS else ""
            default = common if parameter.default is parameter.empty else default_text(parameter.default)
            options.append(Option(key, kind, default, about))
    return options
