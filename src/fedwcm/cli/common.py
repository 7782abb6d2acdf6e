"""Flags that several commands share."""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedwcm.config.flags import FLAGS, merge_once
from fedwcm.config.options import parse_value
from fedwcm.config.settings import FineTuning, Settings, parse_assignment, split_list

if TYPE_CHECKING:
    from fedwcm.experiment.records import PersonalizationRecord


SubParsers = Any
"""The type of argparse's sub-parsers is private."""


TEXTS = frozenset(
    name
    for name, option in FLAGS.items()
    if option.kind in ("text", "text or none", "a list, each text") and option.key != "run.diagnostics"
)
"""Flags whose values stay text, even if they look like numbers."""


GROUPS = {
    "data and clients": ("data", "partition"),
    "model and local training": ("model", "loss", "sampler", "local"),
}
"""Groups of flags in the help, by the sections of their options; the others are in `REST`."""

REST = "the run"

COMMON = (
    *("--dataset", "--label", "--client", "--imbalance", "--clients", "--beta", "--participation"),
    *("--model", "--lr", "--epochs", "--rounds", "--config", "--set"),
)
"""Flags that `--help` shows; `--help-all` shows all."""


RESUMABLE = "stopped; what has finished is saved. To resume, repeat the same command"
"""What a command says that Ctrl-C has stopped, and that goes on where it was."""


def add_options(parser: argparse.ArgumentParser, names: Iterable[str] = FLAGS) -> None:
    """Add the common options as flags, in groups, and `--config` and `--set`."""
    known = list(names)
    titles = {section: title for title, sections in GROUPS.items() for section in sections}
    for title in (*GROUPS, REST):
        members = [name for name in known if titles.get(FLAGS[name].key.split(".")[0], REST) == title]
        group = parser.add_argument_group(title)
        for name in members:
            flag = FLAGS[name]
            default = f"; default {flag.default}" if flag.default not in ("", "none") else ""
            group.add_argument(
                f"--{name.replace('_', '-')}",
                dest=name,
                metavar=PLACEHOLDERS.get(flag.kind, "X"),
                help=f"{flag.help} ({flag.key}{default})".replace("%", "%%"),
            )
    options = parser.add_argument_group("any option", "`fedwcm list options` shows them all")
    options.add_argument("--config", metavar="FILE", help="TOML file with any options; flags win over it")
    options.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any option by its dotted name, such as method.momentum_norm=nominal; may be repeated",
    )


PLACEHOLDERS = {
    "text": "NAME",
    "text or none": "NAME",
    "a number": "NUMBER",
    "a whole number": "N",
    "a whole number or none": "N",
    "true or false": "true|false",
    "a list, each text": "A,B",
}
"""What stands for the value of a flag in the help, by its type."""


def parse_flags(arguments: argparse.Namespace, names: Iterable[str] = FLAGS) -> dict[str, Any]:
    """Return the flags that were given, with values parsed as in TOML."""
    texts = {name: getattr(arguments, name) for name in names}
    given = {name: text for name, text in texts.items() if text is not None}
    return {name: text if name in TEXTS else parse_value(text) for name, text in given.items()}


def parse_settings(arguments: argparse.Namespace) -> Settings:
    """Return the dotted settings that were given."""
    return merge_once(parse_assignment(text) for text in arguments.set)


def add_trust(parser: argparse.ArgumentParser, source: str) -> None:
    """Add `--trust`, of the commands to which a folder may name code."""
    parser.add_argument("--trust", action="store_true", help=f"import what {source} as package.module:Name")


def add_personalize(parser: argparse.ArgumentParser) -> None:
    """Add `--personalize`, of the commands that test a model."""
    parser.add_argument(
        "--personalize",
        metavar="epochs=N,layers=L",
        help="also test each client after it has fine-tuned the model: epochs=1,layers=all (or head),lr=X",
    )


def personalize_by_text(folder: "str | Path", text: str, **keywords: Any) -> "PersonalizationRecord":
    """Fine-tune as `--personalize` says."""
    from dataclasses import asdict

    from fedwcm import personalize

    return personalize(folder, **asdict(FineTuning.parse(text)), **keywords)


def print_personalized(record: "PersonalizationRecord") -> None:
    """Print how the clients did before and after they fine-tuned the model."""
    epochs = "1 epoch" if record.epochs == 1 else f"{record.epochs} epochs"
    print(f"fine-tuned by {len(record.client_accuracy)} clients ({epochs}, layers: {record.layers}):")
    for key, value in record.after.items():
        print(f"{key.replace('_', ' '):>20}  {record.before[key]:.4f} -> {value:.4f}")


def print_views(trackers: Sequence[str], folder: Path) -> None:
    """Print how to look at what the trackers of a run, or a comparison, have written."""
    from fedwcm.experiment.trackers.tracking import views

    for name, text in views(trackers, folder).items():
        print(f"{name}: {text}")


def parse_seeds(text: str) -> list[int]:
    """Return the seeds in a list `0,1,2` or a range `0-9`."""
    seeds: list[int] = []
    for part in split_list(text):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f"--seeds: {part!r} is not a seed: it must be a non-negative whole number, or 0-9")
        if dash and int(last) < int(first):
            raise ValueError(f"--seeds: {part!r} holds no seed: a range goes upwards, as in 0-9")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def add_trained_model(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a trained model: who makes it, and the class mix that it is used for."""
    parser.add_argument("--model", metavar="X", help="package.module:factory for the trained weights")
    parser.add_argument("--trust", action="store_true", help="import the factory that the folder names")
    parser.add_argument(
        "--mix",
        metavar="MIX",
        help="class distribution to use the model for: natural (of the training data), uniform, target, trained, "
        "client:NAME, a file, or CLASS=SHARE,…; client: of each row's own client (not for export)",
    )


UNLIMITED = 10_000


def console() -> Console:
    """Return standard output, whatever it is at the moment, for tables that fit its width."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else UNLIMITED, highlight=False)


def trained_model(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the keywords of the flags of `add_trained_model`."""
    return {"model": arguments.model, "trust": arguments.trust, "mix": arguments.mix}


PADDING = 3
"""Characters between two columns of a table."""


def fitting_columns(columns: Mapping[str, Sequence[str]], room: int, least: int = 1) -> list[str]:
    """Return the headings of the first columns that fit, given with their cells; at least so many."""
    fitting: list[str] = []
    for heading, cells in columns.items():
        room -= PADDING + max(map(len, (heading, *cells)))
        if room < 0 and len(fitting) >= least:
            break
        fitting.append(heading)
    return fitting
