"""`fedwcm list`: what is available, and what one of it is."""

import argparse
import inspect
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any

from fedwcm.cli.common import SubParsers
from fedwcm.config.option_docs import OptionDoc, all_options, option_docs
from fedwcm.core.checks import unknown

SECTIONS = {"methods": "method", "losses": "loss", "samplers": "sampler", "partitions": "partition"}
"""Lists of components, with the section that their options are in."""


def add(commands: SubParsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "list",
        help="methods, data sets, models, options, …",
        description="List what is available, or describe one of it with its options.",
        examples=["fedwcm list methods", "fedwcm list methods fedwcm", "fedwcm list options"],
    )
    parser.add_argument("what", nargs="?", choices=sorted(LISTS), help="what to list; nothing for what there is")
    parser.add_argument("name", nargs="?", metavar="NAME", help="one of the list, to describe with its options")
    parser.set_defaults(do=do)


def do(arguments: argparse.Namespace) -> int:
    """Print the names, each with one line about it; what can be listed; or one entry with its options."""
    if arguments.what is None:
        _print_lines({what: about for what, (about, _) in LISTS.items()})
    elif arguments.name is None:
        _print_lines(LISTS[arguments.what][1]())
    else:
        _describe(arguments.what, arguments.name)
    return 0


def names_of(what: str) -> list[str]:
    """The names in one of the lists."""
    return list(LISTS[what][1]())


def _print_lines(entries: Mapping[str, str]) -> None:
    width = max(map(len, entries))
    for name, about in entries.items():
        print(f"{name:<{width}}  {about}")


def _describe(what: str, name: str) -> None:
    entries = LISTS[what][1]()
    if name not in entries:
        raise unknown(what.removesuffix("s"), name, entries)
    if what not in SECTIONS:
        print(f"{name}: {entries[name]}")
        return
    cls = _classes(what)[name]
    print(inspect.getdoc(inspect.getmodule(cls)) or entries[name])
    options = option_docs(cls, SECTIONS[what]) if is_dataclass(cls) else []
    if options:
        print("\noptions:")
        _print_lines({option.key: _meaning(option) for option in options})


def _meaning(option: OptionDoc) -> str:
    default = f"default {option.default}" if option.default else "required"
    return f"{option.about} [{option.kind}; {default}]".strip()


def _classes(what: str) -> Mapping[str, type[Any]]:
    from fedwcm.data.partition import PARTITIONS
    from fedwcm.losses import LOSSES
    from fedwcm.methods import METHODS
    from fedwcm.samplers import SAMPLERS

    found: dict[str, Mapping[str, type[Any]]] = {
        "methods": METHODS,
        "losses": LOSSES,
        "samplers": SAMPLERS,
        "partitions": PARTITIONS,
    }
    return found[what]


def _components(what: str) -> Callable[[], dict[str, str]]:
    return lambda: {name: _module_line(cls) for name, cls in _classes(what).items()}


def _datasets() -> dict[str, str]:
    from fedwcm.data import DATASETS, synthetic

    named = {name: entry.description for name, entry in DATASETS.items()}
    return {**named, synthetic.NAME: synthetic.DESCRIPTION}


def _models() -> dict[str, str]:
    from fedwcm.models import MODELS

    return {name: (inspect.getdoc(builder) or "").partition("\n")[0] for name, builder in MODELS.items()}


def _trackers() -> dict[str, str]:
    from fedwcm.runs.trackers import TRACKERS

    return {name: _module_line(cls) for name, cls in TRACKERS.items()}


def _recipes() -> dict[str, str]:
    from fedwcm.config.recipes import RECIPES

    return {name: recipe.description for name, recipe in RECIPES.items()}


def _options() -> dict[str, str]:
    return {option.key: _meaning(option) for option in all_options()}


def _module_line(cls: type) -> str:
    """The first line of the docstring of the module that defines a class."""
    return (inspect.getdoc(inspect.getmodule(cls)) or "").partition("\n")[0]


LISTS: dict[str, tuple[str, Callable[[], dict[str, str]]]] = {
    "methods": ("federated methods, for --method", _components("methods")),
    "recipes": ("named combinations of a method, loss and sampler, for --method", _recipes),
    "losses": ("the clients' losses, for --loss", _components("losses")),
    "samplers": ("how clients draw their batches, for --sampler", _components("samplers")),
    "datasets": ("named data sets, for --dataset", _datasets),
    "partitions": ("how samples are divided among clients, for --partition", _components("partitions")),
    "models": ("networks, for --model", _models),
    "trackers": ("experiment trackers, for --track", _trackers),
    "options": ("every dotted option, for --set, --grid and TOML files", _options),
}
