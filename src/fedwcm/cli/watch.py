"""`fedwcm watch`: look at runs in progress."""

import argparse
from pathlib import Path

from fedwcm.cli.common import SubParsers


def add(verbs: SubParsers) -> None:
    """Add the command."""
    parser = verbs.add_parser(
        "watch",
        help="look at runs in progress",
        description="Show runs while they go on: accuracy overall and per class, momentum, time left.",
    )
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="DIR", help="a run, a comparison or a folder with several"
    )
    parser.add_argument("--once", action="store_true", help="show them as they are, and end")
    parser.set_defaults(do=do)


def do(arguments: argparse.Namespace) -> int:
    """Show the runs."""
    from fedwcm.watch.show import show

    show(arguments.folders, arguments.once)
    return 0
