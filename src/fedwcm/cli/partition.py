"""`fedwcm partition`: describe and draw a partition of the data, or several, before training."""

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedwcm.cli.common import SubParsers, add_options, add_trust, parse_flags, parse_settings
from fedwcm.config.flags import PARTITION_FLAGS
from fedwcm.config.settings import split_list
from fedwcm.core.checks import require
from fedwcm.utils.text import bar

if TYPE_CHECKING:
    from fedwcm import PartitionedData

BAR_WIDTH = 30
"""Characters of the most frequent class."""


def add_parser(commands: SubParsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "partition",
        help="describe and draw a partition",
        description="Divide a data set, in one way or in several, and describe the result.",
    )
    add_options(parser, PARTITION_FLAGS)
    parser.add_argument("--compare", metavar="A,B[x=y],…", help="partitions to show side by side")
    parser.add_argument("--out", metavar="FILE", help="draw a picture of it: .png, .svg or .pdf")
    add_trust(parser, "a run's config.toml names")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Print the statistics of one partition, or of several side by side; draw them if a file is named."""
    flags, settings = parse_flags(arguments, PARTITION_FLAGS), parse_settings(arguments)
    from fedwcm import partition, partitions
    from fedwcm.reports.division import division_table

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
    if arguments.out is None:
        print("\nA picture of it: --out partition.png (or .svg, .pdf)")
    else:
        _draw(divisions, Path(arguments.out))
    return 0


def _draw(divisions: "Mapping[str, PartitionedData]", out: Path) -> None:
    from fedwcm.reports.division import draw_divisions

    first = next(iter(divisions.values()))
    tail = first.config.data.imbalance
    imbalance = "" if isinstance(tail, str) else f", imbalance {tail:g}"
    title = f"{first.config.data.title}{imbalance}"
    out.parent.mkdir(parents=True, exist_ok=True)
    counts = {_title(division): division.counts for division in divisions.values()}
    if draw_divisions(counts, first.classes, title, out):
        print(f"\npicture: {out}")


def _describe(division: "PartitionedData") -> None:
    for name, value in asdict(division.statistics).items():
        shown = f"{value:.4g}" if isinstance(value, float) else value
        print(f"{name.replace('_', ' '):>26}  {shown}")
    if len(division.server_rows):
        print(f"{'the server holds':>26}  {len(division.server_rows)}")
    totals = division.counts.sum(axis=0)
    print(f"\n{'class':>26}  {'samples':>8}  held by")
    for index in np.argsort(-totals, kind="stable"):
        holders = int((division.counts[:, index] > 0).sum())
        drawn = bar(totals[index] / totals.max(), BAR_WIDTH).rstrip()
        print(f"{division.classes[index]:>26}  {totals[index]:>8,}  {holders:>7,}  {drawn}")


def _title(division: "PartitionedData") -> str:
    chosen = division.config.partition
    options = ", ".join(f"{key}={value}" for key, value in chosen.options.items())
    return f"{chosen.name} ({options})" if options else chosen.name
