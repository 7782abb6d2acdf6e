"""`fedwcm predict`: what a trained model makes of samples."""

import argparse

from fedwcm.cli.common import SubParsers, add_trained_model, chosen_flags
from fedwcm.config.flags import FLAGS, column_names

NAMES = ("data_dir", "label", "client", "drop", "encoding", "delimiter")


def add_parser(commands: SubParsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "predict",
        help="predict classes with a trained model",
        description="Predict the class of every sample, with probabilities. Labels are not needed.",
    )
    parser.add_argument("folder", metavar="RUN", help="folder of a finished run")
    parser.add_argument("data", metavar="DATA", help=FLAGS["dataset"].help)
    parser.add_argument(
        "--out", default="predictions.csv", metavar="FILE", help="CSV file (default: predictions.csv)"
    )
    add_trained_model(parser)
    parser.add_argument("--id", metavar="COLUMN", help="column that names the rows, kept in the predictions")
    for name in NAMES:
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, metavar="X", help=FLAGS[name].help)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Predict, and say where the predictions are."""
    from fedwcm import predict

    options = chosen_flags(arguments, NAMES)
    options["drop"] = column_names(arguments.drop)
    predictions = predict(
        arguments.folder,
        arguments.data,
        out=arguments.out,
        model=arguments.model,
        trust=arguments.trust,
        id=arguments.id,
        mix=arguments.mix,
        **options,
    )
    print(f"{len(predictions.ids)} predictions in {arguments.out}")
    return 0
