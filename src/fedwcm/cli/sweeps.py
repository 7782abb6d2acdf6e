"""`fedwcm compare`, `tune` and `study`: many runs, their table, and the best options."""

import argparse
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwcm.cli import common
from fedwcm.config.flags import COMPARE_FLAGS
from fedwcm.config.options import parse_value
from fedwcm.config.settings import parse_assignment, split_list
from fedwcm.utils.extras import optional_module

if TYPE_CHECKING:
    from fedwcm import Comparison


def add_compare_parser(commands: common.SubParsers) -> None:
    """Add `fedwcm compare`."""
    parser = commands.add_parser(
        "compare",
        help="run several methods and seeds",
        description="Run every method with every seed, tabulate, and judge by paired differences over the seeds.",
        examples=[
            "fedwcm compare --methods fedavg,fedcm,fedwcm --seeds 0,1,2 --out runs/digits --jobs 2",
            "fedwcm compare --methods fedavg,fedwcm --grid lr=0.03,0.1 --out runs/lr --dry-run",
        ],
    )
    _add_runs(parser, "folder of the comparison; resumed if it exists")
    parser.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="KEY=A,B",
        help="values of an option, by its flag or dotted name: lr=0.03,0.1; every combination is run; repeatable",
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time (default 1)")
    common.add_trust(parser, "a run's folder, given as --config, names")
    parser.add_argument("--no-report", action="store_true", help="write no report.html")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check and list the runs, and estimate their time and memory",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print the results as JSON, for scripts; no progress")
    parser.shorten_help(["--methods", "--seeds", "--grid", "--jobs", "--out", "--dry-run", *common.COMMON])
    parser.set_defaults(execute=execute_compare, stopped=common.RESUMABLE)


def _add_runs(parser: argparse.ArgumentParser, out: str) -> None:
    """Add the methods, seeds, folder and options that all runs have."""
    parser.add_argument("--methods", required=True, metavar="A,B[x=y],…", help="methods or recipes")
    parser.add_argument(
        "--seeds", default="0", metavar="0-4", help="a run of each method for each: 0-4 or 0,1,7 (default 0)"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help=out)
    common.add_options(parser, COMPARE_FLAGS)


def execute_compare(arguments: argparse.Namespace) -> int:
    """Run the comparison, then print the table and the path of the report."""
    methods, seeds = split_list(arguments.methods), common.parse_seeds(arguments.seeds)
    options: dict[str, Any] = {
        "grid": _grid(arguments.grid),
        "jobs": arguments.jobs,
        "trust": arguments.trust,
        "config": arguments.config,
        "settings": common.parse_settings(arguments),
        **common.parse_flags(arguments, COMPARE_FLAGS),
    }
    # A sign of life: torch takes seconds to import.
    logging.getLogger("fedwcm").info("%s, seeds %s, into %s", ", ".join(methods), arguments.seeds, arguments.out)
    from fedwcm import compare

    if arguments.dry_run:
        print(compare(methods, seeds, arguments.out, dry_run=True, **options))
        return 0
    progress = not (arguments.quiet or arguments.json)
    comparison = compare(
        methods, seeds, arguments.out, report=not arguments.no_report, progress=progress, **options
    )
    _print_result(comparison, as_json=arguments.json)
    return 0


def _print_result(comparison: "Comparison", *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(comparison.to_json()))
        return
    from fedwcm.cli.results_table import print_comparison

    print_comparison(comparison, common.console())
    tracked = {name: None for runs in comparison.runs.values() for run in runs for name in run.config.run.track}
    common.print_views(list(tracked), comparison.folder)


def _grid(texts: Sequence[str]) -> dict[str, list[object]]:
    grid: dict[str, list[object]] = {}
    for text in texts:
        name, _ = parse_assignment(text)
        if name in grid:
            raise ValueError(f"--grid {name} is given twice: list all of its values in one, {name}=A,B,C")
        grid[name] = [parse_value(value) for value in split_list(text.partition("=")[2])]
    return grid


def add_tune_parser(commands: common.SubParsers) -> None:
    """Add `fedwcm tune`."""
    parser = commands.add_parser(
        "tune",
        help="search for the best options",
        description="Search for the options with the best balanced validation accuracy, as many trials each.\n"
        "The same command resumes a search that was stopped, and joins one that is running.",
        examples=[
            "fedwcm tune --methods fedavg,fedcm --search lr=log:0.003:0.3 --seeds 0,1 --out runs/tuned",
            "fedwcm tune --methods fedcm --search lr=0.03,0.1 --search method.alpha=0.05:0.5 --out runs/tuned",
        ],
    )
    _add_runs(parser, "folder of the search; resumed if it exists")
    parser.add_argument(
        "--search",
        action="append",
        default=[],
        metavar="KEY=RANGE",
        help="an option, by flag or dotted name: log:LOW:HIGH, LOW:HIGH, int:LOW:HIGH or A,B,C; may be repeated",
    )
    parser.add_argument("--space", metavar="FILE", help="TOML file with the ranges or lists of options")
    parser.add_argument("--trials", type=int, default=20, metavar="N", help="settings of each method (default 20)")
    parser.add_argument("--quiet", action="store_true", help="do not say how each trial ended")
    parser.shorten_help(
        ["--methods", "--search", "--space", "--trials", "--seeds", "--out", "--val-fraction", *common.COMMON]
    )
    parser.set_defaults(execute=execute_tune, stopped=common.RESUMABLE)


def execute_tune(arguments: argparse.Namespace) -> int:
    """Search, then print what was found and the command to run it."""
    optional_module("optuna", "tune", "fedwcm tune")
    from fedwcm import tune
    from fedwcm.sweeps.tuning.study import ranges_in

    out = Path(arguments.out)
    tune(
        split_list(arguments.methods),
        ranges_in(arguments.search),
        out,
        seeds=common.parse_seeds(arguments.seeds),
        trials=arguments.trials,
        space=arguments.space,
        config=arguments.config,
        settings=common.parse_settings(arguments),
        progress=not arguments.quiet,
        **common.parse_flags(arguments, COMPARE_FLAGS),
    )
    print((out / "tuning.md").read_text(encoding="utf-8"))
    print(f"report: {out / 'report.html'}")
    return 0


def add_study_parser(commands: common.SubParsers) -> None:
    """Add `fedwcm study`."""
    parser = commands.add_parser(
        "study",
        help="run methods × data × seeds as a file declares them",
        description="Run a study, tuned with the same budget for each method, and write its tables and figures.\n"
        "The same command resumes it.",
        examples=["fedwcm study tails.toml --jobs 2", "fedwcm study tails.toml --out runs/tails"],
    )
    parser.add_argument("file", metavar="FILE", help="TOML file: docs/studies.md has what it declares")
    parser.add_argument("--out", metavar="DIR", help="folder of the study (default: beside the file)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time (default 1)")
    parser.add_argument("--no-report", action="store_true", help="write no report.html for each data")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.set_defaults(execute=execute_study, stopped=common.RESUMABLE)


def execute_study(arguments: argparse.Namespace) -> int:
    """Run the study, then print its page."""
    from fedwcm import study

    report, progress = not arguments.no_report, not arguments.quiet
    done = study(arguments.file, arguments.out, jobs=arguments.jobs, report=report, progress=progress)
    print(done)
    print(f"written to {done.folder}")
    return 0
