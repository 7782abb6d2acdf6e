"""`fedwcm partition`: describe and draw a partition of the data, or several, before training."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fedwcm.cli.common import SubParsers, add_options, chosen_flags, chosen_settings
from fedwcm.config.component_text import split_list
from fedwcm.config.flags import PARTITION_FLAGS
from fedwcm.core.checks import require

if TYPE_CHECKING:
    from fedwcm import PartitionedData


def add_parser(commands: SubParsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "partition",
        help="describe and draw a partition",
        description="Divide a data set, in one way or in several, and describe the result.",
    )
    add_options(parser, PARTITION_FLAGS)
    parser.add_argument("--compare", metavar="A,B[x=y],…", help="partitions to show side by side")
    parser.add_argument("--out", default="partition.png", metavar="FILE", help="picture: .png, .svg or .pdf")
    parser.add_argument(
        "--trust", action="store_true", help="import what a run's config.toml names as package.module:Name"
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Print the statistics of one partition, or of several side by side, and draw them."""
    flags, settings = chosen_flags(arguments, PARTITION_FLAGS), chosen_settings(arguments)
    from fedwcm import partition, partitions
    from fedwcm.reports.division import division_table, draw_divisions

    if arguments.compare is None:
        division = partition(config=arguments.config, settings=settings, trust=arguments.trust, **flags)
        divisions = {division.config.partition.name: division}
        _describe(division)
    else:
        if "partition" in flags:
            raise ValueError(f"--partition {flags['partition']} and --compare exclude each other")
        ways = split_list(arguments.compare)
        require(bool(ways), "--compare", arguments.compare, "one or more partitions, such as equal,fedgrab")
        divisions = partitions(ways, config=arguments.config, settings=settings, trust=arguments.trust, **flags)
        print(division_table({name: division.statistics for name, division in divisions.items()}))
    first = next(iter(divisions.values()))
    tail = first.config.data.imbalance
    imbalance = "" if isinstance(tail, str) else f", imbalance {tail:g}"
    title = f"{first.config.data.title}{imbalance}"
    out = Path(arguments.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    counts = {_title(division): division.counts for division in divisions.values()}
    if draw_divisions(counts, first.classes, title, out):
        print(f"\npicture: {out}")
    return 0


def _describe(division: "PartitionedData") -> None:
    for name, value in asdict(division.statistics).items():
        shown = f"{value:.4g}" if isinstance(value, float) else value
        print(f"{name.replace('_', ' '):>26}  {shown}")
    totals = zip(division.classes, division.counts.sum(axis=0).tolist(), strict=True)
    print(f"{'samples per class':>26}  {', '.join(f'{name}: {total}' for name, total in totals)}")


def _title(division: "PartitionedData") -> str:
    chosen = division.config.partition
    options = ", ".join(f"{key}={value}" for key, value in chosen.options.items())
    return f"{chosen.name} ({options})" if options else chosen.name
