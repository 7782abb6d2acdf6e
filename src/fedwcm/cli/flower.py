"""`fedwcm flower`: write a Flower app to start from, and check the options of one."""

import argparse
import shlex

from fedwcm.cli.common import SubParsers


def add_parser(commands: SubParsers) -> None:
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
    init.add_argument("folder", metavar="DIR", help="folder to write it to; created if missing")
    init.set_defaults(execute=execute_init)
    check = actions.add_parser(
        "check",
        help="check the options of an app",
        description="Say what is wrong with the options of an app, or of a `flwr run` with these changes.",
    )
    check.add_argument("folder", metavar="DIR", help="folder of the app")
    check.add_argument(
        "--run-config", metavar="'KEY=VALUE …'", action="append", default=[], help="as for flwr run"
    )
    check.set_defaults(execute=execute_check)


def execute_check(arguments: argparse.Namespace) -> int:
    """Check the options of an app."""
    from fedwcm.flower.app.init import flower_check

    config = flower_check(arguments.folder, arguments.run_config)
    print(f"{arguments.folder}: all options are known; it trains {config.method.name}")
    return 0


def execute_init(arguments: argparse.Namespace) -> int:
    """Write the app and print how to run it."""
    from fedwcm.flower.app.init import flower_init

    flower_init(arguments.folder)
    print(f"{arguments.folder} holds a Flower app. Run it with ten simulated clients:")
    run = "flwr run . --stream --federation-config 'num-supernodes=10'"
    config = r'"flower.out=\"$PWD/run\""'
    print(f"  cd {shlex.quote(arguments.folder)} && {run} --run-config {config}")
    print("The folder `run` then holds the model and report.html.")
    return 0
