"""`fedwcm.evaluate` and `fedwcm.predict`: a trained model on its run's own test rows, or on other data."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from fedwcm.api.arguments import Array, ClientsLike, DataLike, Folder, ModelLike, ReadKeywords, refuse_others
from fedwcm.api.mix import CLIENT, Mix
from fedwcm.api.own_rows import own_rows, refuse_reading
from fedwcm.api.trained import Trained, load_trained
from fedwcm.core.checks import require
from fedwcm.core.torch_rng import default_torch_modes
from fedwcm.core.types import Floats
from fedwcm.data import load_rows
from fedwcm.data.raw import InferenceRows
from fedwcm.data.read_options import Unlabelled
from fedwcm.data.split import stratified_split
from fedwcm.engine.evaluate import CHUNK, Evaluation, measure
from fedwcm.experiment.folder import RunFolder
from fedwcm.metrics.calibration import class_calibration_errors, expected_calibration_error
from fedwcm.metrics.classification import class_precision, precision_at_recall, summarise, wilson_interval
from fedwcm.metrics.clients import OnOwnSamples, name_accuracies, spread_over_clients
from fedwcm.models.predictor import Predictor
from fedwcm.utils.json_record import JsonRecord, optional
from fedwcm.utils.text import csv_cells

RECALL = 0.9
"""The recall at which the precision of each class is given."""


@dataclass(frozen=True, kw_only=True)
class EvaluationRecord(JsonRecord):
    """A trained model on rows that it was not trained on. The metrics mean what they mean in a `RoundRecord`.

    Args:
        rows: which were tested: those that the `run` held out, the `test` part, `all`, or some that were `drawn`.
        balanced_accuracy: mean over the classes that were tested.
        test_loss: mean negative log-likelihood.
        classes: the names of the classes, in the order of everything that is per class.
        train_counts, test_counts: training samples and tested rows of each class.
        per_class_accuracy: recall of each class.
        per_class_interval: its 95 % interval (Wilson).
        per_class_precision: share of the rows predicted as the class that are of it.
        precision_at_recall: precision of an alarm for the class that finds `RECALL` (90 %) of its rows.
        per_class_loss: mean negative log-likelihood of the class's rows.
        per_class_ece: calibration error of the probability of the class, over all rows.
        confusion: `confusion[i][j]` rows of class i were taken for class j.
        temperature: that the logits were divided by (`fedwcm.calibrate`); None if it is 1.
        used_for: the class mix or operating point that the model was tested for; None for that of its training.
        mix_distance: share of the rows that would have to change class for the class mix of the tested rows to be
            the one that the probabilities presuppose; None where that is not known.
        trained_clients: how many of the tested clients trained the model; None where clients are not known.
        client_accuracy: of each client by its name, where it is known whose the rows are.
    """

    samples: int
    rows: str
    balanced_accuracy: float
    test_accuracy: float
    macro_f1: float
    many: float | None = optional()
    medium: float | None = optional()
    few: float | None = optional()
    test_loss: float
    test_ece: float
    classes: tuple[str, ...]
    train_counts: tuple[int, ...]
    test_counts: tuple[int, ...]
    per_class_accuracy: tuple[float | None, ...]
    per_class_interval: tuple[tuple[float, ...] | None, ...]
    per_class_precision: tuple[float | None, ...]
    precision_at_recall: tuple[float | None, ...]
    per_class_loss: tuple[float | None, ...]
    per_class_ece: tuple[float, ...]
    confusion: tuple[tuple[int, ...], ...]
    temperature: float | None = optional()
    used_for: str | None = optional()
    mix_distance: float | None = optional()
    trained_clients: int | None = optional()
    client_mean: float | None = optional()
    client_worst_decile: float | None = optional()
    client_std: float | None = optional()
    client_accuracy: Mapping[str, float] | None = optional()


@default_torch_modes()
def evaluate(
    folder: Folder,
    dataset: DataLike | None = None,
    *,
    model: ModelLike | None = None,
    trust: bool = False,
    mix: Mix | None = None,
    split: str | None = None,
    unlabelled: Unlabelled | None = None,
    test_fraction: float | None = None,
    clients: ClientsLike | None = None,
    **options: Unpack[ReadKeywords],
) -> EvaluationRecord:
    """Test the model of a run. Columns and classes are matched by name.

    The run's own data is recognised by its content: exactly the rows that the run held out are then tested, and
    options that would read the data in another way are refused. Of other data, the test part is tested if there
    is one, and otherwise every row.

    Args:
        folder: the run's folder, or its result.
        dataset: what to test on, any source that `fedwcm.run` takes; the run's own test rows by default.
        model: what takes the trained weights, as in `fedwcm.load_model`.
        trust: import the factory that the folder names as `package.module:factory`.
        mix: the class distribution that the model is used for, as in `fedwcm.load_model`; or `client`: for each
            row that of its own client's training samples.
        split: column of a table that says `train`, `val` or `test`.
        unlabelled: `skip` leaves out rows of a table without a label, with a warning.
        test_fraction: test only this share of each class, drawn from data without a test part.
        clients: the client of every sample, if the run was given it and held out some of them (`test_clients`).
        options: how the data are read: `data_dir`, `label`, `client`, `drop`, `encoding` and `delimiter`, as in
            `fedwcm.run`; by default as the training data were.

    Returns:
        The number of `samples`, which they were (`rows`: `run`, `test`, `all` or `drawn`), and the metrics.
    """
    run_folder, trained = RunFolder(Path(folder)), load_trained(Path(folder), model, trust, mix)
    refuse_others(options, ReadKeywords.__annotations__, "evaluate")
    data_dir = None if options.get("data_dir") is None else str(options["data_dir"])
    drop = tuple(options.get("drop", ()))
    reading: Any = {**options, "data_dir": data_dir, "drop": drop, "split": split, "unlabelled": unlabelled}
    config = run_folder.config()
    moved = config if data_dir is None else replace(config, data=replace(config.data, data_dir=data_dir))
    own = own_rows(trained, moved, dataset, clients)
    if own is None:
        rows = load_rows(dataset, trained.schema, **reading)
        which: str = rows.part if test_fraction is None else "drawn"
        rows = rows if test_fraction is None else _draw(rows, test_fraction)
    else:
        refuse_reading({**reading, "test_fraction": test_fraction}, moved)
        rows, which = own, "run"
    record, facts = _measure(trained, rows, which, run_folder), trained.facts
    point = None if facts.operating_point is None else f"the operating point {facts.operating_point}"
    used_for = point if mix is None else None if mix == "trained" else f"the class mix {mix}"
    return replace(record, temperature=None if facts.temperature == 1 else facts.temperature, used_for=used_for)


def _draw(rows: InferenceRows, fraction: float) -> InferenceRows:
    """Return a share of each class of data without a test part."""
    require(0 < fraction < 1, "test_fraction", fraction, "above 0 and below 1")
    if rows.part == "test":
        raise ValueError(f"test_fraction = {fraction} is for data without a test part: {rows.name} has one")
    assert rows.y is not None
    chosen = stratified_split(rows.y, fraction, np.random.default_rng(0))[1]
    clients = None if rows.clients is None else rows.clients[chosen]
    return replace(rows, x=rows.x[chosen], y=rows.y[chosen], ids=None, clients=clients)


def _measure(trained: Trained, rows: InferenceRows, which: str, folder: RunFolder) -> EvaluationRecord:
    """Return the loss and the metrics of the model on these rows."""
    assert rows.y is not None
    classes, labels = len(trained.schema.classes), torch.from_numpy(rows.y)
    logits = trained.logits(rows)
    tested = measure(logits.split(CHUNK), labels, classes)
    counts, rule = np.array(folder.summary().train_counts), folder.config().run.shot_groups
    metrics = summarise(tested.confusion, counts, rule)
    probabilities = logits.softmax(dim=-1).numpy()
    support = tested.confusion.sum(axis=1)
    interval = wilson_interval(np.diag(tested.confusion), support).tolist()
    losses = np.bincount(rows.y, weights=tested.losses, minlength=classes)
    return EvaluationRecord(
        samples=len(rows.x),
        rows=which,
        classes=trained.schema.classes,
        test_loss=tested.loss,
        test_ece=expected_calibration_error(tested),
        **vars(metrics),
        train_counts=tuple(counts.tolist()),
        test_counts=tuple(support.tolist()),
        per_class_interval=tuple(tuple(pair) if n else None for pair, n in zip(interval, support, strict=True)),
        per_class_precision=_or_none(class_precision(tested.confusion)),
        per_class_loss=_or_none(np.divide(losses, support, out=np.full(classes, np.nan), where=support > 0)),
        precision_at_recall=tuple(
            precision_at_recall(p, rows.y == c, RECALL) for c, p in enumerate(probabilities.T)
        ),
        per_class_ece=tuple(class_calibration_errors(probabilities, rows.y)),
        confusion=tuple(map(tuple, tested.confusion.tolist())),
        mix_distance=_mix_distance(trained, support / support.sum()),
        **_of_clients(rows, tested, folder),
    )


def _mix_distance(trained: Trained, tested: Floats) -> float | None:
    """Return how far the class mix of the tested rows is from the one that the probabilities presuppose."""
    if trained.partition is not None:  # a mix of its own for each client
        return None
    try:
        presupposed = trained.facts.assumed_shares
    except ValueError:
        return None
    if isinstance(trained.module, Predictor):
        presupposed = presupposed * np.exp(trained.module.shift.double().numpy())
    return float(np.abs(tested - presupposed / presupposed.sum()).sum() / 2)


def _of_clients(rows: InferenceRows, tested: Evaluation, folder: RunFolder) -> dict[str, Any]:
    """Return the accuracy of each client, and how many of them trained the model, where they are known."""
    if rows.clients is None:
        return {}
    measure_clients = OnOwnSamples.of(rows.clients)
    accuracy, split = measure_clients(tested), folder.partition()
    trained_names = set() if split is None else set(split.names or ())
    return {
        **spread_over_clients(accuracy),
        "client_accuracy": name_accuracies(accuracy, measure_clients.names),
        "trained_clients": len(trained_names & set(measure_clients.names)) if trained_names else None,
    }


def _or_none(values: Floats) -> tuple[float | None, ...]:
    return tuple(None if np.isnan(value) else float(value) for value in values)


OTHER_FORMATS = (".parquet", ".json", ".jsonl", ".xlsx", ".npz", ".npy", ".feather", ".pkl", ".pickle", ".tsv")
"""Endings of files that predictions are not written to."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model makes of samples, one row per sample, in the order of their source.

    Args:
        classes: the names of the classes, in the order of the columns of `probabilities`.
        probabilities: of each class, `(samples, classes)`.
        ids: what the source calls each sample: its id, the path of an image, or its number from 1.
        id_name: the heading of the ids.
    """

    classes: tuple[str, ...]
    probabilities: NDArray[np.float32]
    ids: tuple[str, ...]
    id_name: str = "sample"

    def __repr__(self) -> str:
        return f"Predictions of {len(self.ids):,} samples: labels, probabilities, ids, write(path)"

    @property
    def labels(self) -> list[str]:
        """The name of the most probable class of each sample."""
        return [self.classes[i] for i in self.probabilities.argmax(axis=1)]

    def write(self, path: str | Path) -> None:
        """Write a CSV file: the sample, the predicted class and the probability of each class."""
        require_csv(path)
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(csv_cells([self.id_name, "predicted", *(f"p({name})" for name in self.classes)]))
            for name, label, row in zip(self.ids, self.labels, self.probabilities, strict=True):
                writer.writerow(csv_cells([name, label, *(f"{p:.6g}" for p in row)]))


@default_torch_modes()
def predict(
    folder: Folder,
    data: DataLike | Array,
    *,
    out: str | Path | None = None,
    model: ModelLike | None = None,
    trust: bool = False,
    mix: Mix | None = None,
    id: str | None = None,
    **options: Unpack[ReadKeywords],
) -> Predictions:
    """Predict the class of every sample. Labels, if present, are ignored.

    Args:
        folder: the run's folder, or its result.
        data: any source that `fedwcm.run` takes, with or without labels, or an array of inputs alone. Columns are
            matched by name; those that the training data had beside its inputs, such as the label, may be absent.
        out: CSV file to write the predictions to.
        model: what takes the trained weights, as in `fedwcm.load_model`.
        trust: import the factory that the folder names as `package.module:factory`.
        mix: the class distribution that the model is used for, as in `fedwcm.load_model`; or `client`: for each
            row that of its own client's training samples.
        id: column of a table that names its rows: it becomes the first column of the predictions.
        options: how the data are read: `data_dir`, `label`, `client`, `drop`, `encoding` and `delimiter`, as in
            `fedwcm.run`; the label and the client need a name if it differs from that in the training data.
    """
    if out is not None:
        require_csv(out)
    refuse_others(options, ReadKeywords.__annotations__, "predict")
    trained = load_trained(Path(folder), model, trust, mix)
    reading: dict[str, Any] = {**options}
    label, client = reading.pop("label", None), reading.pop("client", None)
    holder = (client or RunFolder(Path(folder)).config().data.client) if mix == CLIENT else None
    others = [name for name in (label, client) if name is not None and name != holder]
    reading |= {"client": holder, "drop": (*options.get("drop", ()), *others)}
    rows = load_rows(data, trained.schema, labelled=False, part="all", id=id, **reading)
    probabilities = trained.logits(rows).softmax(dim=-1).numpy()
    ids = rows.ids or tuple(str(number) for number in range(1, len(rows.x) + 1))
    predictions = Predictions(trained.schema.classes, probabilities, ids, id or "sample")
    if out is not None:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        predictions.write(out)
    return predictions


def require_csv(path: str | Path) -> None:
    """Raise for a file whose ending promises another format."""
    other = Path(path).suffix.lower() in OTHER_FORMATS
    require(not other, "out", str(path), "a file that ends in .csv: other formats are not written")
