"""`fedwcm list`: list what is available, or describe one entry."""

import argparse
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from fedwcm.cli.common import SubParsers
from fedwcm.cli.component_options import documented_options, shared_options
from fedwcm.cli.console import console
from fedwcm.config.flags import FLAGS
from fedwcm.config.option_docs import OptionDoc, all_options
from fedwcm.core.checks import unknown

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
    if arguments.what is None:
        _print_lines([(what, about) for what, (about, _) in LISTS.items()])
    elif arguments.what == "options" and arguments.name is None:
        _print_lines(_every_option())
    elif arguments.name is None:
        _print_lines(list(LISTS[arguments.what][1]().items()))
    else:
        _describe(arguments.what, arguments.name)
    return 0


def names_of(what: str) -> list[str]:
    """The names in one of the lists."""
    return list(LISTS[what][1]())


def _print_lines(entries: Sequence[tuple[str, str]]) -> None:
    """Print two columns; the second is wrapped to the width of a terminal, and left as it is elsewhere."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for name, about in entries:
        table.add_row(Text(name), Text(about))
    if sys.stdout.isatty():
        console().print(table)
        return
    width = max(len(name) for name, _ in entries)
    for name, about in entries:
        print(f"{name:<{width}}  {about}")


def _describe(what: str, name: str) -> None:
    recipes = _recipes()
    if what in ("methods", "recipes") and name in recipes:  # --method takes both
        return _describe_recipe(name)
    if what == "options":
        return _print_lines(_options_called(name))
    entries = LISTS[what][1]()
    if name not in entries:
        raise unknown(what.removesuffix("s"), name, {*entries, *(recipes if what == "methods" else ())})
    if what not in SECTIONS:
        print(f"{name}: {entries[name]}")
        return
    component = _components_of(what)[name]
    about = component if what == "models" else inspect.getmodule(component)
    print(inspect.getdoc(about) or entries[name])
    if options := documented_options(component, SECTIONS[what]):
        print("\noptions:")
        _print_lines([(option.key, _meaning(option)) for option in options])


def _describe_recipe(name: str) -> None:
    from fedwcm.config.recipes import RECIPES

    print(f"{RECIPES[name].description}\n\nsettings:")
    _print_lines([(key, str(value)) for key, value in RECIPES[name].settings.items()])


def _options_called(name: str) -> list[tuple[str, str]]:
    """The options of a section, that of a flag, or the one of this dotted name."""
    flag, every = FLAGS.get(name.replace("-", "_")), _every_option()
    found = [(key, about) for key, about in every if key == (flag.key if flag else name)]
    found = found or [(key, about) for key, about in every if key.startswith(f"{name}.")]
    if not found:
        raise unknown("option, section or flag", name, [*(key for key, _ in every), *FLAGS])
    return found


def _meaning(option: OptionDoc, owners: str = "") -> str:
    default = f"default {option.default}" if option.default else "required"
    of = f"; of {owners}" if owners else ""
    return f"{option.about} [{option.kind}; {default}{of}]".strip()


def _every_option() -> list[tuple[str, str]]:
    """Every dotted option; those of components after the option that names the component."""
    lists = {section: what for what, section in SECTIONS.items()}
    found = []
    for option in all_options():
        found.append((option.key, _meaning(option)))
        section, _, name = option.key.partition(".")
        if section in lists and name == "name":
            shared = shared_options(_components_of(lists[section]), section)
            found += [(own.key, _meaning(own, owners)) for own, owners in shared]
    return found


def _components_of(what: str) -> Mapping[str, Callable[..., Any]]:
    from fedwcm.data.partition import PARTITIONS
    from fedwcm.losses import LOSSES
    from fedwcm.methods import METHODS
    from fedwcm.models import MODELS
    from fedwcm.samplers import SAMPLERS

    found: dict[str, Mapping[str, Callable[..., Any]]] = {
        "models": MODELS,
        "methods": METHODS,
        "losses": LOSSES,
        "samplers": SAMPLERS,
        "partitions": PARTITIONS,
    }
    return found[what]


def _components(what: str) -> Callable[[], dict[str, str]]:
    return lambda: {name: _module_line(cls) for name, cls in _components_of(what).items()}


def _datasets() -> dict[str, str]:
    from fedwcm.data import DATASETS, synthetic

    named = {name: entry.description for name, entry in DATASETS.items()}
    return {**named, synthetic.NAME: synthetic.DESCRIPTION}


def _models() -> dict[str, str]:
    from fedwcm.models import MODELS

    return {name: (inspect.getdoc(builder) or "").partition("\n")[0] for name, builder in MODELS.items()}


def _trackers() -> dict[str, str]:
    from fedwcm.experiment.trackers import TRACKERS

    return {name: _module_line(cls) for name, cls in TRACKERS.items()}


def _recipes() -> dict[str, str]:
    from fedwcm.config.recipes import RECIPES

    return {name: recipe.description for name, recipe in RECIPES.items()}


def _options() -> dict[str, str]:
    return dict(_every_option())


def _module_line(cls: Callable[..., object]) -> str:
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
