"""`fedwcm.predict`: the classes and probabilities that a trained model gives to samples."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedwcm.api.arguments import Array, DataLike, ModelLike
from fedwcm.api.mix import CLIENT, Mix
from fedwcm.api.trained import load_trained
from fedwcm.core.checks import require
from fedwcm.data import load_rows
from fedwcm.experiment.folder import RunFolder
from fedwcm.utils.text import csv_cells

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


def predict(
    folder: str | Path,
    data: DataLike | Array,
    *,
    out: str | Path | None = None,
    model: ModelLike | None = None,
    trust: bool = False,
    mix: Mix | None = None,
    data_dir: str | Path | None = None,
    label: str | None = None,
    client: str | None = None,
    id: str | None = None,
    drop: Sequence[str] = (),
    encoding: str | None = None,
    delimiter: str | None = None,
) -> Predictions:
    """Predict the class of every sample. Labels are not needed, and not looked at where there are any.

    Args:
        folder: the run's folder.
        data: any source that `fedwcm.run` takes, with or without labels, or an array of inputs alone. Columns are
            matched by name; those that the training data had beside its inputs, such as the label, may be absent.
        out: CSV file to write the predictions to.
        model: what takes the trained weights, as in `fedwcm.load_model`.
        trust: import the factory that the folder names as `package.module:factory`.
        mix: the class distribution that the model is used for, as in `fedwcm.load_model`; or `client`: for each
            row that of its own client's training samples.
        data_dir: folder in which named data sets are looked for first.
        label: label column, if its name differs from that in the training data.
        client: client column, if its name differs from that in the training data.
        id: column of a table that names its rows: it becomes the first column of the predictions.
        drop: columns to leave out, by name or pattern.
        encoding: encoding of a text file.
        delimiter: what separates the columns of a text file, or `tab`; by default recognised.
    """
    if out is not None:
        require_csv(out)
    trained = load_trained(Path(folder), model, trust, mix)
    holder = (client or RunFolder(Path(folder)).config().data.client) if mix == CLIENT else None
    others = tuple(name for name in (label, client) if name not in (None, holder))
    rows = load_rows(
        data,
        trained.schema,
        labelled=False,
        part="all",
        data_dir=data_dir,
        client=holder,
        id=id,
        drop=(*drop, *others),
        encoding=encoding,
        delimiter=delimiter,
    )
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
