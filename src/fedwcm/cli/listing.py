"""`fedwcm list`: the available methods, data sets, models, …"""

import argparse
import inspect
from collections.abc import Callable

from fedwcm.cli.common import SubParsers


def add(commands: SubParsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "list", help="methods, data sets, models, …", description="List what is available."
    )
    parser.add_argument("what", choices=sorted(LISTS))
    parser.set_defaults(do=do)


def do(arguments: argparse.Namespace) -> int:
    """Print the names, each with one line about it."""
    entries = LISTS[arguments.what]()
    width = max(map(len, entries))
    for name, about in entries.items():
        print(f"{name:<{width}}  {about}")
    return 0


def _methods() -> dict[str, str]:
    from fedwcm.methods import METHODS

    return {name: _module_line(cls) for name, cls in METHODS.items()}


def _losses() -> dict[str, str]:
    from fedwcm.losses import LOSSES

    return {name: _module_line(cls) for name, cls in LOSSES.items()}


def _samplers() -> dict[str, str]:
    from fedwcm.samplers import SAMPLERS

    return {name: _module_line(cls) for name, cls in SAMPLERS.items()}


def _datasets() -> dict[str, str]:
    from fedwcm.data import DATASETS, synthetic

    named = {name: entry.description for name, entry in DATASETS.items()}
    return {**named, synthetic.NAME: synthetic.DESCRIPTION}


def _partitions() -> dict[str, str]:
    from fedwcm.data.partition import PARTITIONS

    return {name: _module_line(cls) for name, cls in PARTITIONS.items()}


def _models() -> dict[str, str]:
    from fedwcm.models import MODELS

    return {name: inspect.getdoc(builder).partition("\n")[0] for name, builder in MODELS.items()}  # type: ignore[union-attr]


def _trackers() -> dict[str, str]:
    from fedwcm.runs.trackers import TRACKERS

    return {name: _module_line(cls) for name, cls in TRACKERS.items()}


def _recipes() -> dict[str, str]:
    from fedwcm.config.recipes import RECIPE_SETS, RECIPES

    sets = {name: f"a set, for --methods: {', '.join(members)}" for name, members in RECIPE_SETS.items()}
    return {**{name: recipe.description for name, recipe in RECIPES.items()}, **sets}


def _module_line(cls: type) -> str:
    """The first line of the docstring of the module that defines a class."""
    return (inspect.getdoc(inspect.getmodule(cls)) or "").partition("\n")[0]


LISTS: dict[str, Callable[[], dict[str, str]]] = {
    "methods": _methods,
    "losses": _losses,
    "samplers": _samplers,
    "datasets": _datasets,
    "partitions": _partitions,
    "models": _models,
    "recipes": _recipes,
    "trackers": _trackers,
}
