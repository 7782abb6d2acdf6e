"""`fedwcm reproduce`: run a table or figure of the paper and set our numbers beside the paper's."""

import argparse
import sys
from typing import Any

from fedwcm.cli.common import RESUMABLE, SubParsers, parse_seeds, parse_settings
from fedwcm.config.settings import split_list
from fedwcm.core.checks import require


def add_parser(commands: SubParsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "reproduce",
        help="run a table or figure of the paper",
        description="Run what is left of a table or figure of the paper, and set our numbers beside the paper's.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="the table or figure: see --list")
    parser.add_argument("--list", action="store_true", help="all of them: runs, how many are done, the time left")
    parser.add_argument("--dataset", default="", metavar="A,B", help="data sets, in place of those of the paper")
    parser.add_argument("--methods", default="", metavar="A,B[x=y],…", help="methods, in place of the paper's")
    parser.add_argument("--seeds", default="", metavar="0,1,2", help="seeds, in place of the usual ones")
    parser.add_argument(
        "--only", action="append", default=[], metavar="AXIS=A,B", help="these values of an axis of the table"
    )
    parser.add_argument("--fraction", type=float, default=1.0, metavar="X", help="share of the rounds, in (0, 1]")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any option of the runs")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time")
    parser.add_argument("--backend", metavar="X", help="auto, sequential, vectorized or parallel")
    parser.add_argument("--results", default="results", metavar="DIR", help="folder of the finished runs")
    parser.add_argument("--pages", metavar="DIR", help="folder for table, figures and report (default: results)")
    parser.add_argument("--work", default="runs/reproduce", metavar="DIR", help="folder of the runs in progress")
    parser.add_argument("--keep", action="store_true", help="keep models in --work: more rounds go on from them")
    parser.add_argument("--pages-only", action="store_true", help="run nothing: write pages from what is there")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.set_defaults(execute=execute, stopped=RESUMABLE)


def execute(arguments: argparse.Namespace) -> int:
    """Run what is left, then print the table and where the pages are; or print the list."""
    scope = _scope(arguments)
    if arguments.list and arguments.only:
        raise ValueError("--only is for one table or figure, which has the axis: it does not go with --list")
    if arguments.list:
        return _print_list(scope, arguments.results)
    if arguments.name is None:
        raise ValueError("NAME is missing: `fedwcm reproduce --list` has the names")
    from fedwcm.reproduction.command import reproduce

    pages = reproduce(
        arguments.name,
        **scope,
        results=arguments.results,
        pages=arguments.pages,
        work=arguments.work,
        keep=arguments.keep,
        jobs=arguments.jobs,
        backend=arguments.backend,
        pages_only=arguments.pages_only,
        progress=not arguments.quiet,
    )
    print(pages.table)
    for path in (pages.markdown, pages.csv, pages.report, *pages.figures):
        if path is not None:
            print(path)
    return 0


def _scope(arguments: argparse.Namespace) -> dict[str, Any]:
    from fedwcm.reproduction.command import LEADERBOARD
    from fedwcm.reproduction.presets import load_preset, point_settings, split_labels

    preset = load_preset(arguments.name) if arguments.name not in (None, LEADERBOARD) else None
    grid = preset.grid if preset else {}
    labels = {axis: [point_settings(value)[0] for value in values] for axis, values in grid.items()}
    return {
        "dataset": split_list(arguments.dataset),
        "methods": split_labels(arguments.methods, preset.methods if preset else ()),
        "seeds": parse_seeds(arguments.seeds),
        "only": {axis: split_labels(text, labels.get(axis, ())) for axis, text in map(_axis, arguments.only)},
        "fraction": arguments.fraction,
        "settings": parse_settings(arguments),
    }


def _axis(text: str) -> tuple[str, str]:
    axis, _, values = text.partition("=")
    require(bool(axis and split_list(values)), "--only", text, "AXIS=VALUE,…, such as imbalance=0.1,0.01")
    return axis, values


def _print_list(scope: dict[str, Any], results: str) -> int:
    from fedwcm.reproduction.command import listing
    from fedwcm.reproduction.presets import Scope

    print(f"finished runs are those in {results}", file=sys.stderr)
    lines = listing(Scope(**scope), results)
    width = max(len(line.name) for line in lines)
    print(f"{'name':<{width}}  {'runs':>5}  {'done':>5}  {'left here':>10}  {'on a GPU':>10}  what")
    for line in lines:
        print(
            f"{line.name:<{width}}  {line.cells:>5}  {line.done:>5}  {line.here:>10}  {line.gpu:>10}  {line.title}"
        )
    print(
        "Estimates: at the pace of stored runs with models of that size, or of some steps; GPU by rule of thumb."
    )
    return 0
