"""`fedwcm partition`: look at a division of the data before training on it."""

import argparse
from dataclasses import asdict
from pathlib import Path

from fedwcm.cli.common import SubParsers, add_options, chosen_flags, chosen_settings

NAMES = (
    "dataset",
    "data_dir",
    "label",
    "client",
    "split",
    "test_fraction",
    "val_fraction",
    "imbalance",
    "partition",
    "clients",
    "beta",
    "seed",
)


def add(verbs: SubParsers) -> None:
    """Add the command."""
    parser = verbs.add_parser(
        "partition", help="describe and draw a division", description="Divide a data set and describe the result."
    )
    add_options(parser, NAMES)
    parser.add_argument("--out", default="partition.png", metavar="FILE", help="picture: clients × classes")
    parser.set_defaults(do=do)


def do(arguments: argparse.Namespace) -> int:
    """Print the statistics of the division and draw it."""
    from fedwcm.api import partition
    from fedwcm.report.division import draw_division

    division = partition(
        config=arguments.config, settings=chosen_settings(arguments), **chosen_flags(arguments, NAMES)
    )
    for name, value in asdict(division.statistics).items():
        shown = f"{value:.4g}" if isinstance(value, float) else value
        print(f"{name.replace('_', ' '):>26}  {shown}")
    print(f"{'samples per class':>26}  {division.counts.sum(axis=0).tolist()}")
    options = ", ".join(f"{k}={v}" for k, v in division.config.partition.options.items())
    title = f"{division.config.data.dataset}: {division.config.partition.name} ({options})"
    out = Path(arguments.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    if draw_division(division.counts, division.classes, title, out):
        print(f"\npicture: {out}")
    return 0
