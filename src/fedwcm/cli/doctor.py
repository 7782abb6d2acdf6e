"""`fedwcm doctor`: look for faults of this machine."""

import argparse
from itertools import chain

from fedwcm.cli.common import SubParsers


def add_parser(commands: SubParsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor",
        help="look for faults of this machine",
        description="Say what this machine is, and compare convolutions and small runs with references.",
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Print the facts and a line per check; 1 if one failed."""
    from fedwcm.doctor.backends import backend_checks
    from fedwcm.doctor.checks import convolution_checks
    from fedwcm.doctor.facts import facts

    for name, value in facts().items():
        print(f"{name:>20}  {value}")
    failed = False
    for check in chain(convolution_checks(), backend_checks()):
        print(f"{check.status:>20}  {check.name}: {check.detail}", flush=True)
        failed |= check.status == "FAIL"
    return int(failed)
