"""`fedwcm compare`: run several methods, seeds and settings, and tabulate the results."""

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwcm.cli.common import COMMON, SubParsers, add_options, chosen_flags, chosen_settings, print_views, seeds_in
from fedwcm.config.flags import COMPARE_FLAGS
from fedwcm.config.options import parse_value
from fedwcm.config.settings import parse_assignment, split_list

if TYPE_CHECKING:
    from fedwcm import Comparison


def add_parser(commands: SubParsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "compare",
        help="run several methods and seeds",
        description="Run every method with every seed, tabulate, and judge by paired differences over the seeds.",
        examples=[
            "fedwcm compare --methods fedavg,fedcm,fedwcm --seeds 0,1,2 --out runs/digits --jobs 2",
            "fedwcm compare --methods fedavg,fedwcm --grid lr=0.03,0.1 --out runs/lr --dry-run",
        ],
    )
    parser.add_argument("--methods", required=True, metavar="A,B[x=y],…", help="methods or recipes")
    parser.add_argument(
        "--seeds", default="0", metavar="0-4", help="a run of each method for each: 0-4 or 0,1,7 (default 0)"
    )
    parser.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="KEY=A,B",
        help="values of an option, by its flag or dotted name: lr=0.03,0.1; every combination is run; repeatable",
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time (default 1)")
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="folder of the comparison; resumed if it exists"
    )
    add_options(parser, COMPARE_FLAGS)
    parser.add_argument(
        "--trust",
        action="store_true",
        help="import what a run's folder, given as --config, names as package.module:Name",
    )
    parser.add_argument("--no-report", action="store_true", help="write no report.html")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check and list the runs, and estimate their time and memory",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print the results as JSON, for scripts; no progress")
    parser.shorten_help(["--methods", "--seeds", "--grid", "--jobs", "--out", "--dry-run", *COMMON])
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Run the comparison, then print the table and the path of the report."""
    seeds = seeds_in(arguments.seeds)
    grid = _grid(arguments.grid)
    flags, settings = chosen_flags(arguments, COMPARE_FLAGS), chosen_settings(arguments)
    methods, out = split_list(arguments.methods), Path(arguments.out)
    # A sign of life: torch takes seconds to import.
    logging.getLogger("fedwcm").info("%s, seeds %s, into %s", ", ".join(methods), arguments.seeds, out)
    from fedwcm import compare
    from fedwcm.experiment.interrupts import exit_status

    shared: dict[str, Any] = {
        **{"grid": grid, "jobs": arguments.jobs, "trust": arguments.trust},
        **{"config": arguments.config, "settings": settings, **flags},
    }
    if arguments.dry_run:
        print(compare(methods, seeds, out, dry_run=True, **shared))
        return 0
    try:
        comparison = compare(
            methods,
            seeds,
            out,
            report=not arguments.no_report,
            progress=not (arguments.quiet or arguments.json),
            **shared,
        )
    except KeyboardInterrupt:
        print("stopped; progress is saved. To resume, repeat the same command", file=sys.stderr)
        return exit_status()
    _print_result(comparison, as_json=arguments.json)
    return 0


def _print_result(comparison: "Comparison", *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(comparison.to_json()))
        return
    from fedwcm.cli.common import console
    from fedwcm.cli.results_table import print_comparison

    print_comparison(comparison, console())
    tracked = {name: None for runs in comparison.runs.values() for run in runs for name in run.config.run.track}
    print_views(list(tracked), comparison.folder)


def _grid(texts: Sequence[str]) -> dict[str, list[object]]:
    grid: dict[str, list[object]] = {}
    for name, values in map(_axis, texts):
        if name in grid:
            raise ValueError(f"--grid {name} is given twice: list all of its values in one, {name}=A,B,C")
        grid[name] = values
    return grid


def _axis(text: str) -> tuple[str, list[object]]:
    name, _ = parse_assignment(text)
    return name, [parse_value(value) for value in split_list(text.partition("=")[2])]
