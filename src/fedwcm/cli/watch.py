"""`fedwcm watch`: show runs in progress."""

import argparse

from fedwcm.cli.common import SubParsers


def add_parser(commands: SubParsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "watch",
        help="show runs in progress",
        description="Show runs in progress: accuracy overall and per class, momentum, time left.",
    )
    parser.add_argument("folders", nargs="+", metavar="DIR", help="a run, a comparison or a folder with several")
    parser.add_argument("--once", action="store_true", help="show one frame and exit")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Show the runs."""
    from fedwcm.dashboard.show import watch

    watch(arguments.folders, once=arguments.once)
    return 0
