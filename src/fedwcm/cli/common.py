"""Flags that several commands share."""

import argparse
from collections.abc import Iterable
from typing import Any

from fedwcm.config.flags import FLAGS
from fedwcm.config.options import parse_value
from fedwcm.config.schema import Settings, parse_assignment, split_list

SubParsers = Any
"""The type of argparse's sub-parsers is private."""


TEXTS = frozenset(
    {"dataset", "data_dir", "label", "client", "split", "features", "drop", "encoding"}
    | {"partition", "model", "loss", "sampler", "device"}
)


def add_options(parser: argparse.ArgumentParser, names: Iterable[str] = FLAGS) -> None:
    """Add the common options as flags, `--config` and `--set`."""
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


def chosen_flags(arguments: argparse.Namespace, names: Iterable[str] = FLAGS) -> dict[str, Any]:
    """The flags that were given, with values parsed as in TOML."""
    given = {name: getattr(arguments, name) for name in names}
    return {name: _value(name, text) for name, text in given.items() if text is not None}


def chosen_settings(arguments: argparse.Namespace) -> Settings:
    """The dotted settings that were given."""
    return dict(parse_assignment(text) for text in arguments.set)


def names_in(text: str | None) -> tuple[str, ...]:
    """The names in a list `a,b`; none of nothing."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def seeds_in(text: str) -> list[int]:
    """The seeds in a list `0,1,2`."""
    for seed in (listed := split_list(text)):
        if not seed.isdigit():
            raise ValueError(f"--seeds: {seed!r} is not a seed: it must be a non-negative whole number")
    return [int(seed) for seed in listed]


def _value(name: str, text: str) -> object:
    """The value of a flag; names stay text, even if they look like numbers."""
    return text if name in TEXTS else parse_value(text)


def add_adjust(parser: argparse.ArgumentParser) -> None:
    """Add the flag that corrects a trained model for the class distribution of its training data."""
    parser.add_argument(
        "--adjust",
        nargs="?",
        type=float,
        const=1.0,
        default=0.0,
        metavar="TAU",
        help="subtract TAU (1 if not given) times the log class distribution of the training data from the logits",
    )
