"""`fedwcm evaluate`: test a trained model."""

import argparse
import json
from collections.abc import Mapping

from fedwcm.cli.common import (
    SubParsers,
    add_personalize,
    add_trained_model,
    chosen_flags,
    personalized,
    print_personalized,
)
from fedwcm.config.flags import FLAGS, column_names
from fedwcm.utils.json_record import finite

NAMES = ("data_dir", "label", "client", "split", "drop", "encoding", "delimiter", "unlabelled", "test_fraction")
TESTED = {
    "run": "the {} rows that the run held out",
    "test": "the {} rows of the test part",
    "all": "all {} rows, since there is no test part",
    "drawn": "{} rows drawn",
}


def add_parser(commands: SubParsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "evaluate",
        help="test a trained model",
        description="Test the model of a run: on the rows that it held out, or on other data.",
    )
    parser.add_argument("folder", metavar="DIR", help="folder of a finished run")
    parser.add_argument(
        "--dataset", metavar="X", help=FLAGS["dataset"].help + " (default: the run's own test rows)"
    )
    add_trained_model(parser)
    for name in NAMES:
        text = "share to draw and test; by default all rows" if name == "test_fraction" else FLAGS[name].help
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, metavar="X", help=text)
    add_personalize(parser)
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object, for scripts")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Print what was tested, and every metric, one per line or as JSON."""
    from fedwcm.api import evaluate

    options = chosen_flags(arguments, NAMES)
    options["drop"] = column_names(arguments.drop)
    found = evaluate(
        arguments.folder,
        arguments.dataset,
        model=arguments.model,
        trust=arguments.trust,
        adjust=arguments.adjust,
        **options,
    )
    measured = found.to_json()
    fine_tuned = None
    if arguments.personalize is not None:
        given = {"dataset": arguments.dataset, "model": arguments.model, "trust": arguments.trust}
        fine_tuned = personalized(arguments.folder, arguments.personalize, **given)
    if arguments.json:
        more = {} if fine_tuned is None else {"personalized": fine_tuned.to_json()}
        print(json.dumps(finite({"folder": arguments.folder, **measured, **more}), allow_nan=False))
        return 0
    samples = measured.pop("samples")
    print(f"tested on {TESTED[str(measured.pop('rows'))].format(samples)}")
    measured["per_class_accuracy"] = dict(zip(found.classes, found.per_class_accuracy, strict=True))
    del measured["classes"]
    for name, value in measured.items():
        print(f"{name.replace('_', ' '):>20}  {_shown(value)}")
    if fine_tuned is not None:
        print_personalized(fine_tuned)
    return 0


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_shown, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_shown(item)}" for name, item in value.items())
    if value is None:
        return "–"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
