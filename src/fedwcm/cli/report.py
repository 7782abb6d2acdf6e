"""`fedwcm report`: a page about runs, to look at."""

import argparse

from fedwcm.cli.common import SubParsers


def add(verbs: SubParsers) -> None:
    """Add the command."""
    parser = verbs.add_parser(
        "report",
        help="write a page about runs",
        description="Write one self-contained page about a run, a comparison, or several of either.",
    )
    parser.add_argument("folders", nargs="+", metavar="DIR", help="folder of a run or of a comparison")
    parser.add_argument("--out", metavar="FILE", help="the page (default: report.html in DIR, here for several)")
    parser.add_argument("--figures", metavar="DIR", help="folder for the figures as PNG and SVG (fedwcm[report])")
    parser.add_argument(
        "--target", type=float, metavar="X", help="accuracy whose first round the table of a comparison tells"
    )
    parser.set_defaults(do=do)


def do(arguments: argparse.Namespace) -> int:
    """Write, and say where."""
    from fedwcm.reports.write import report

    print(
        f"report: {report(arguments.folders, arguments.out, figures=arguments.figures, target=arguments.target)}"
    )
    if arguments.figures:
        print(f"figures: {arguments.figures}")
    return 0
