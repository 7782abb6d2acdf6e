"""`fedwcm study`: run what a file declares, and print its tables."""

import argparse
import sys

from fedwcm.cli.common import SubParsers


def add_parser(commands: SubParsers) -> None:
    """Add the command."""
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
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Run the study, then print its page."""
    from fedwcm import study
    from fedwcm.experiment.interrupts import exit_status

    try:
        done = study(
            arguments.file,
            arguments.out,
            jobs=arguments.jobs,
            report=not arguments.no_report,
            progress=not arguments.quiet,
        )
    except KeyboardInterrupt:
        print("stopped; progress is saved. To resume, repeat the same command", file=sys.stderr)
        return exit_status()
    print(done)
    print(f"written to {done.folder}")
    return 0
