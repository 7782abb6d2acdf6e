"""`fedwcm evaluate`: test a trained model on other data."""

import argparse

from fedwcm.cli.common import SubParsers, chosen_flags
from fedwcm.config.flags import FLAGS

NAMES = ("data_dir", "label", "client", "split", "test_fraction")


def add(commands: SubParsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "evaluate", help="test a trained model", description="Test the model of a run on other data's test part."
    )
    parser.add_argument("folder", metavar="DIR", help="folder of a finished run")
    parser.add_argument("--dataset", required=True, metavar="X", help=FLAGS["dataset"].help)
    for name in NAMES:
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, metavar="X", help=FLAGS[name].help)
    parser.set_defaults(do=do)


def do(arguments: argparse.Namespace) -> int:
    """Print all metrics, one per line."""
    from fedwcm.api import evaluate

    measured = evaluate(arguments.folder, arguments.dataset, **chosen_flags(arguments, NAMES))
    for name, value in measured.to_json().items():
        print(f"{name.replace('_', ' '):>20}  {_shown(value)}")
    return 0


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_shown, value))
    if value is None:
        return "–"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
