"""`fedwcm tune`: search for the best options of methods."""

import argparse
import sys
from pathlib import Path

from fedwcm.cli.common import COMMON, SubParsers, add_options, chosen_flags, chosen_settings, seeds_in
from fedwcm.config.flags import COMPARE_FLAGS
from fedwcm.config.settings import split_list
from fedwcm.utils.extras import optional_module


def add_parser(commands: SubParsers) -> None:
    """Add the command."""
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
    parser.add_argument("--methods", required=True, metavar="A,B[x=y],…", help="methods or recipes")
    parser.add_argument(
        "--search",
        action="append",
        default=[],
        metavar="KEY=RANGE",
        help="an option, by flag or dotted name: log:LOW:HIGH, LOW:HIGH, int:LOW:HIGH or A,B,C; may be repeated",
    )
    parser.add_argument("--space", metavar="FILE", help="TOML file with the ranges or lists of options")
    parser.add_argument("--trials", type=int, default=20, metavar="N", help="settings of each method (default 20)")
    parser.add_argument("--seeds", default="0", metavar="0,1", help="runs of each trial (default 0)")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the search; resumed if it exists")
    add_options(parser, COMPARE_FLAGS)
    parser.add_argument("--quiet", action="store_true", help="do not say how each trial ended")
    parser.set_defaults(execute=execute)
    parser.shorten_help(
        ["--methods", "--search", "--space", "--trials", "--seeds", "--out", "--val-fraction", *COMMON]
    )


def execute(arguments: argparse.Namespace) -> int:
    """Search, then print what was found and the command to run it."""
    optional_module("optuna", "tune", "fedwcm tune")
    from fedwcm import tune
    from fedwcm.experiment.interrupts import exit_status
    from fedwcm.sweeps.tuning.study import ranges_in

    flags, out = chosen_flags(arguments, COMPARE_FLAGS), Path(arguments.out)
    try:
        tune(
            split_list(arguments.methods),
            ranges_in(arguments.search),
            out,
            seeds=seeds_in(arguments.seeds),
            trials=arguments.trials,
            space=arguments.space,
            config=arguments.config,
            settings=chosen_settings(arguments),
            progress=not arguments.quiet,
            **flags,
        )
    except KeyboardInterrupt:
        print("stopped. To go on, repeat the same command", file=sys.stderr)
        return exit_status()
    print((out / "tuning.md").read_text(encoding="utf-8"))
    print(f"report: {out / 'report.html'}")
    return 0
