"""`fedwcm export`: a trained model in one file, for programs without this package."""

import argparse

from fedwcm.cli.common import SubParsers, add_trained_model


def add_parser(commands: SubParsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "export",
        help="write a trained model as ONNX, TorchScript or state dict",
        description="Write the model of a run to one file, normaliser and class names inside, and check it.",
    )
    parser.add_argument("folder", metavar="RUN", help="folder of a finished run")
    parser.add_argument("--format", required=True, metavar="F", help="onnx, torchscript or state-dict")
    parser.add_argument("--out", required=True, metavar="FILE", help="the file to write")
    add_trained_model(parser)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Export, and say where the file is."""
    from fedwcm import export

    path = export(
        arguments.folder,
        arguments.format,
        arguments.out,
        model=arguments.model,
        trust=arguments.trust,
        mix=arguments.mix,
    )
    print(f"{arguments.format} in {path}")
    return 0
