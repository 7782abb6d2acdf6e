"""Flags that several commands share."""

import argparse
from collections.abc import Iterable
from typing import Any

from fedwcm.config.flags import FLAGS
from fedwcm.config.options import parse_value
from fedwcm.config.schema import Settings, parse_assignment

SubParsers = Any
"""argparse keeps the type of its sub-parsers to itself."""


TEXTS = frozenset(
    {"dataset", "data_dir", "label", "client", "split", "features", "drop", "encoding"}
    | {"partition", "model", "loss", "sampler", "device"}
)


def add_options(parser: argparse.ArgumentParser, names: Iterable[str] = FLAGS) -> None:
    """The common options as flags, a file and dotted settings."""
    options = parser.add_argument_group("options of the run")
    for name in names:
        flag = FLAGS[name]
        options.add_argument(
            f"--{name.replace('_', '-')}", dest=name, metavar="X", help=f"{flag.help} ({flag.key})"
        )
    options.add_argument("--config", metavar="FILE", help="TOML file with any options")
    options.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any option by its dotted name, such as method.momentum_norm=nominal; may be repeated",
    )
    add_trust(options)


def add_trust(parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    """The flag that permits the code of a run's folder."""
    parser.add_argument(
        "--trust", action="store_true", help="run the code (package.module:Name) that a run's folder names"
    )


def chosen_flags(arguments: argparse.Namespace, names: Iterable[str] = FLAGS) -> Settings:
    """The flags that were given, their values as TOML writes them."""
    given = {name: getattr(arguments, name) for name in names}
    return {name: _value(name, text) for name, text in given.items() if text is not None}


def chosen_settings(arguments: argparse.Namespace) -> Settings:
    """The dotted settings that were given."""
    return dict(parse_assignment(text) for text in arguments.set)


def _value(name: str, text: str) -> object:
    """A flag's value; what names a thing stays text, even if it looks like a number."""
    return text if name in TEXTS else parse_value(text)
