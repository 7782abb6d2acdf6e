"""`fedwcm evaluate`, `predict` and `export`: use a trained model."""

import argparse
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from fedwcm.cli import common
from fedwcm.config.flags import FLAGS, column_names
from fedwcm.utils.json_record import finite
from fedwcm.utils.text import bar

if TYPE_CHECKING:
    from fedwcm.api.evaluation import EvaluationRecord


NAMES = ("data_dir", "label", "client", "split", "drop", "encoding", "delimiter", "unlabelled", "test_fraction")
TESTED = {
    "run": "the {} rows that the run held out",
    "test": "the {} rows of the test part",
    "all": "all {} rows, since there is no test part",
    "drawn": "{} rows drawn",
}
FAR = 0.15
"""Distance of two class mixes from which loss and calibration error of one say little about the other."""
TITLES = {"test_accuracy": "accuracy", "test_loss": "test loss (NLL)", "test_ece": "calibration error (ECE)"}


def add_parser(commands: common.SubParsers) -> None:
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
    common.add_trained_model(parser)
    for name in NAMES:
        text = "share to draw and test; by default all rows" if name == "test_fraction" else FLAGS[name].help
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, metavar="X", help=text)
    common.add_personalize(parser)
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="fit the temperature to validation data, and keep it with the model",
    )
    parser.add_argument(
        "--operating-point",
        metavar="P",
        help="choose on validation data, and keep with the model: balanced, accuracy, recall:CLASS=0.9, "
        "cost:FILE; none forgets it",
    )
    parser.add_argument(
        "--validation", metavar="X", help="data for these (default: the run's own validation rows)"
    )
    parser.add_argument("--confusion", action="store_true", help="print which classes were taken for which")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object, for scripts")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Print what was tested, and every metric, one per line or as JSON."""
    from fedwcm import evaluate

    if arguments.calibrate or arguments.operating_point is not None:
        _fit(arguments)
    options = {**common.trained_model(arguments), **common.parse_flags(arguments, NAMES)}
    record = evaluate(arguments.folder, arguments.dataset, **options | {"drop": column_names(arguments.drop)})
    fine_tuned = None
    if arguments.personalize is not None:
        keywords = {"dataset": arguments.dataset, "model": arguments.model, "trust": arguments.trust}
        fine_tuned = common.personalize_by_text(arguments.folder, arguments.personalize, **keywords)
    if arguments.json:
        more = {} if fine_tuned is None else {"personalized": fine_tuned.to_json()}
        print(json.dumps(finite({"folder": arguments.folder, **record.to_json(), **more}), allow_nan=False))
        return 0
    _print_record(record)
    if arguments.confusion:
        _print_confusion(record)
    if fine_tuned is not None:
        common.print_personalized(fine_tuned)
    return 0


def _fit(arguments: argparse.Namespace) -> None:
    """Fit what is asked for to validation data, and say what was found, where scripts do not read it."""
    from fedwcm.api.operating import calibrate, choose_operating_point

    keywords = {"model": arguments.model, "trust": arguments.trust, "label": arguments.label}
    out = sys.stderr if arguments.json else sys.stdout
    if arguments.calibrate:
        temperature = calibrate(arguments.folder, arguments.validation, **keywords)
        print(f"temperature {temperature:.4g}, kept with the model", file=out)
    if arguments.operating_point is not None:
        shift = choose_operating_point(
            arguments.folder, arguments.operating_point, arguments.validation, **keywords
        )
        added = ", ".join(f"{name} {value:+.3g}" for name, value in shift.items())
        print(
            f"operating point {arguments.operating_point}, kept with the model; added to the logits: {added}",
            file=out,
        )


def _print_record(record: "EvaluationRecord") -> None:
    """Print what was tested, the metrics one per line, and a table of the classes from head to tail."""
    print(f"tested on {TESTED[record.rows].format(record.samples)}")
    if record.used_for:
        print(f"with the outputs for {record.used_for}")
    for name, value in record.to_json().items():
        if isinstance(value, float):
            print(f"{TITLES.get(name, name.replace('_', ' ')):>24}  {value:.4f}")
    _print_notes(record)
    common.console().print(_class_table(record, common.console().width))
    if record.client_accuracy:
        print("accuracy of each client:", ", ".join(f"{n}: {v:.4f}" for n, v in record.client_accuracy.items()))


def _print_notes(record: "EvaluationRecord") -> None:
    """Print what to know before the numbers are used."""
    if (record.mix_distance or 0.0) > FAR:
        print(
            "note: these probabilities presuppose another class mix than the tested rows have, so the loss and "
            "the calibration error are not those of their use: see --mix uniform, natural, CLASS=SHARE,…"
        )
    if record.trained_clients:
        print(
            f"note: {record.trained_clients} of the {len(record.client_accuracy or ())} clients tested here "
            "trained the model; on new clients it may do worse (hold whole clients out with --test-clients)"
        )


NEEDED, BAR_WIDTH, NAME_WIDTH = 3, 8, 24
"""Columns that are shown in any width, and the characters of a bar and of a class's name."""

CLASS_COLUMNS: dict[str, Callable[["EvaluationRecord", int], str]] = {
    "trained on": lambda record, c: f"{record.train_counts[c]:,}",
    "tested": lambda record, c: f"{record.test_counts[c]:,}",
    "recall": lambda record, c: _format(record.per_class_accuracy[c]),
    "": lambda record, c: bar(record.per_class_accuracy[c] or 0.0, BAR_WIDTH),
    "95 % interval": lambda record, c: " to ".join(map(_format, record.per_class_interval[c] or (None,))),
    "precision": lambda record, c: _format(record.per_class_precision[c]),
    "at 90 % recall": lambda record, c: _format(record.precision_at_recall[c]),
    "NLL": lambda record, c: _format(record.per_class_loss[c]),
    "ECE": lambda record, c: _format(record.per_class_ece[c]),
}


def _class_table(record: "EvaluationRecord", width: int) -> Table:
    """Return the classes from head to tail, with the columns that fit."""
    order = _head_to_tail(record)
    columns = {title: [value(record, c) for c in order] for title, value in CLASS_COLUMNS.items()}
    room = width - 1 - min(NAME_WIDTH, max(map(len, record.classes)))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("class", overflow="fold", min_width=min(10, max(map(len, record.classes))))
    shown = common.fitting_columns(columns, room, NEEDED)
    for title in shown:
        table.add_column(title, justify="right" if title else "left", no_wrap=True)
    for c, *cells in zip(order, *(columns[title] for title in shown), strict=True):
        table.add_row(Text(record.classes[c]), *cells)
    return table


def _print_confusion(record: "EvaluationRecord") -> None:
    """Print how many rows of each class were taken for which, classes from head to tail."""
    order = _head_to_tail(record)
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title="rows: the class; columns: taken for", title_justify="left"
    )
    table.add_column("class", overflow="fold")
    for c in order:
        table.add_column(Text(record.classes[c]), justify="right")
    for c in order:
        table.add_row(Text(record.classes[c]), *(str(record.confusion[c][d]) for d in order))
    common.console().print(table)


def _head_to_tail(record: "EvaluationRecord") -> list[int]:
    """Return the classes, those with most training samples first."""
    return sorted(range(len(record.classes)), key=lambda c: -record.train_counts[c])


def _format(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


PREDICT_NAMES = ("data_dir", "label", "client", "drop", "encoding", "delimiter")


def add_predict_parser(commands: common.SubParsers) -> None:
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
    common.add_trained_model(parser)
    parser.add_argument("--id", metavar="COLUMN", help="column that names the rows, kept in the predictions")
    for name in PREDICT_NAMES:
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, metavar="X", help=FLAGS[name].help)
    parser.set_defaults(execute=execute_predict)


def execute_predict(arguments: argparse.Namespace) -> int:
    """Predict, and say where the predictions are."""
    from fedwcm import predict

    options = {**common.trained_model(arguments), **common.parse_flags(arguments, PREDICT_NAMES)}
    options |= {"drop": column_names(arguments.drop), "id": arguments.id, "out": arguments.out}
    predictions = predict(arguments.folder, arguments.data, **options)
    print(f"{len(predictions.ids)} predictions in {arguments.out}")
    return 0


def add_export_parser(commands: common.SubParsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "export",
        help="write a trained model as ONNX, TorchScript or state dict",
        description="Write the model of a run to one file, normaliser and class names inside, and check it.",
    )
    parser.add_argument("folder", metavar="RUN", help="folder of a finished run")
    parser.add_argument("--format", required=True, metavar="F", help="onnx, torchscript or state-dict")
    parser.add_argument("--out", required=True, metavar="FILE", help="the file to write")
    common.add_trained_model(parser)
    parser.set_defaults(execute=execute_export)


def execute_export(arguments: argparse.Namespace) -> int:
    """Export, and say where the file is."""
    from fedwcm import export

    path = export(arguments.folder, arguments.format, arguments.out, **common.trained_model(arguments))
    print(f"{arguments.format} in {path}")
    return 0
