"""`fedwcm evaluate`: test a trained model on other data."""

import argparse

from fedwcm.cli.common import SubParsers, add_trust, chosen_flags
from fedwcm.config.flags import FLAGS

NAMES = ("data_dir", "label", "client", "split", "test_fraction")


def add(verbs: SubParsers) -> None:
    """Add the command."""
    parser = verbs.add_parser(
        "evaluate", help="test a trained model", description="Test the model of a run on other data's test part."
    )
    parser.add_argument("folder", metavar="DIR", help="folder of a finished run")
    parser.add_argument("--dataset", required=True, metavar="X", help=FLAGS["dataset"].help)
    for name in NAMES:
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, metavar="X", help=FLAGS[name].help)
    add_trust(parser)
    parser.set_defaults(do=do)


def do(arguments: argparse.Namespace) -> int:
    """Print every metric, a line each."""
    from fedwcm.api import evaluate

    options = chosen_flags(arguments, NAMES)
    measures = evaluate(arguments.folder, arguments.dataset, trust=arguments.trust, **options)
    for name, value in measures.items():
        print(f"{name.replace('_', ' '):>20}  {_shown(value)}")
    return 0


def _shown(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(_shown, value))
    if value is None:
        return "–"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
