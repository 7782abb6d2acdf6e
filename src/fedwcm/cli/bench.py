"""`fedwcm bench`: measure the cost of a component on this machine."""

import argparse
from collections.abc import Callable

from fedwcm.cli.common import SubParsers


def add_parser(commands: SubParsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "bench",
        help="measure the cost of a component",
        description="Measure the cost of a component on this machine.",
    )
    parser.add_argument("what", choices=sorted(BENCHMARKS))
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
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    print(BENCHMARKS[arguments.what](arguments))
    return 0


def _privacy(arguments: argparse.Namespace) -> str:
    from fedwcm.privacy import benchmark, format_benchmark

    return format_benchmark(benchmark(arguments.classes, arguments.clients), arguments.more_clients)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


BENCHMARKS: dict[str, Callable[[argparse.Namespace], str]] = {"privacy": _privacy}
