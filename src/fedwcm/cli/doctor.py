"""`fedwcm doctor`: look for faults of this machine."""

import argparse
from itertools import chain

from fedwcm.cli.common import SubParsers


def add(commands: SubParsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor",
        help="look for faults of this machine",
        description="Say what this machine is, and compare convolutions and small runs with references.",
    )
    parser.set_defaults(do=do)


def do(arguments: argparse.Namespace) -> int:
    """Print the facts and a line per check; 1 if one failed."""
    from fedwcm.machine import check_backends, check_convolutions, facts

    for name, value in facts().items():
        print(f"{name:>20}  {value}")
    failed = False
    for check in chain(check_convolutions(), check_backends()):
        print(f"{check.status:>20}  {check.name}: {check.detail}", flush=True)
        failed |= check.status == "FAIL"
    return int(failed)
