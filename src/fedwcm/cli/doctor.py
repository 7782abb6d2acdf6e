"""`fedwcm doctor` and `fedwcm bench`: faults of this machine, and the cost of a component on it."""

import argparse
from functools import partial

from fedwcm.cli.common import SubParsers


def add_parser(commands: SubParsers) -> None:
    """Add both commands."""
    parser = commands.add_parser(
        "bench",
        help="measure the cost of a component",
        description="Measure the cost of a component on this machine.",
    )
    parser.add_argument("what", choices=("privacy",))
    parser.add_argument(
        "--classes", type=_numbers, default=(10, 20, 50, 100, 1000), metavar="N,N,…", help="numbers of classes"
    )
    parser.add_argument("--clients", type=int, default=100, metavar="N", help="clients that are measured")
    parser.add_argument(
        "--more-clients",
        type=int,
        default=10_000,
        metavar="N",
        help="clients that the measurement is scaled up to",
    )
    parser.set_defaults(execute=execute_bench)
    parser = commands.add_parser(
        "doctor",
        help="look for faults of this machine",
        description="Say what this machine is, and compare convolutions and small runs with references.",
    )
    parser.set_defaults(execute=execute_doctor)


def execute_doctor(arguments: argparse.Namespace) -> int:
    """Print the facts and a line per check; 1 if one failed."""
    from fedwcm.diagnosis import doctor

    diagnosis = doctor(progress=partial(print, flush=True))
    print(f"\n{diagnosis.conclusion}")
    return int(not diagnosis.healthy)


def execute_bench(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    from fedwcm.diagnosis import bench

    clients, more = arguments.clients, arguments.more_clients
    print(bench(arguments.what, classes=arguments.classes, clients=clients, more_clients=more))
    return 0


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))
