"""`fedwcm flower init`: write a Flower app to start from."""

import argparse
from pathlib import Path

from fedwcm.cli.common import SubParsers


def add(commands: SubParsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "flower",
        help="run the same methods on real clients",
        description="Federations of real clients, with Flower.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    init = actions.add_parser(
        "init",
        help="write a Flower app to start from",
        description="Write a Flower app that runs as it is, with `flwr run`, and is meant to be edited.",
    )
    init.add_argument("folder", metavar="DIR", type=Path, help="folder to write it to; created if missing")
    init.set_defaults(do=do)


def do(arguments: argparse.Namespace) -> int:
    """Write the app and print how to run it."""
    from fedwcm.flower.init import write_app

    write_app(arguments.folder)
    print(f"{arguments.folder} holds a Flower app. Run it with ten simulated clients:")
    print(f"  cd {arguments.folder} && flwr run . --stream --federation-config 'num-supernodes=10'")
    return 0
