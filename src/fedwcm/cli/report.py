"""`fedwcm report` and `fedwcm watch`: look at runs that have ended, or are in progress."""

import argparse

from fedwcm.cli.common import SubParsers


def add_parser(commands: SubParsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "report",
        help="write a page about runs",
        description="Write one self-contained page about a run, a comparison, or several of either.",
    )
    parser.add_argument("folders", nargs="+", metavar="DIR", help="folder of a run or of a comparison")
    parser.add_argument("--out", metavar="FILE", help="the page (default: report.html in DIR, here for several)")
    parser.add_argument(
        "--figures", metavar="DIR", help="folder for the figures as PDF, SVG and PNG (fedwcm[report])"
    )
    parser.add_argument(
        "--target",
        type=float,
        metavar="X",
        help="accuracy for which a comparison shows the first round",
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Write the page and print its path."""
    from fedwcm.reports.write import report

    print(
        f"report: {report(arguments.folders, arguments.out, figures=arguments.figures, target=arguments.target)}"
    )
    if arguments.figures:
        print(f"figures: {arguments.figures}")
    return 0


def add_watch_parser(commands: SubParsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "watch",
        help="show runs in progress",
        description="Show runs in progress: accuracy overall and per class, momentum, time left.",
    )
    parser.add_argument("folders", nargs="+", metavar="DIR", help="a run, a comparison or a folder with several")
    parser.add_argument("--once", action="store_true", help="show one frame and exit")
    parser.set_defaults(execute=execute_watch)


def execute_watch(arguments: argparse.Namespace) -> int:
    """Show the runs."""
    from fedwcm.dashboard.frame import watch

    watch(arguments.folders, once=arguments.once)
    return 0
