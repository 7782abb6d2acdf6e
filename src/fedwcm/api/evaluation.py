"""`fedwcm.evaluate`: test a trained model, on its run's own test rows or on other data."""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedwcm.api.arguments import ClientsLike, DataLike, ModelLike
from fedwcm.api.trained import Trained, trained
from fedwcm.config.schema import Component, Config
from fedwcm.config.settings import CLIENT_IDS
from fedwcm.core.checks import require
from fedwcm.data import Dataset, load_rows
from fedwcm.data.fingerprint import fingerprint
from fedwcm.data.read_options import Unlabelled
from fedwcm.data.samples import Rows
from fedwcm.data.split import stratified_split
from fedwcm.engine.evaluate import evaluate as evaluate_network
from fedwcm.engine.network import Network
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.partitioning import run_dataset
from fedwcm.experiment.records import EvaluationRecord
from fedwcm.metrics.calibration import expected_calibration_error
from fedwcm.metrics.classification import summarise
from fedwcm.metrics.clients import OnOwnSamples, named, spread_over_clients


def evaluate(
    folder: str | Path,
    dataset: DataLike | None = None,
    *,
    model: ModelLike | None = None,
    trust: bool = False,
    adjust: float = 0.0,
    data_dir: str | Path | None = None,
    label: str | None = None,
    client: str | None = None,
    split: str | None = None,
    drop: Sequence[str] = (),
    encoding: str | None = None,
    delimiter: str | None = None,
    unlabelled: Unlabelled | None = None,
    test_fraction: float | None = None,
    clients: ClientsLike | None = None,
) -> EvaluationRecord:
    """Test the model of a run. Columns and classes are matched by name.

    The run's own data is recognised by its content: exactly the rows that the run held out are then tested, and
    options that would read the data in another way are refused. Of other data, the test part is tested if there
    is one, and otherwise every row.

    Args:
        folder: the run's folder.
        dataset: what to test on, any source that `fedwcm.run` takes; the run's own test rows by default.
        model: what takes the trained weights, as in `fedwcm.load_model`.
        trust: import the factory that the folder names as `package.module:factory`.
        adjust: correct the model for the class distribution of its training data, as in `fedwcm.load_model`.
        data_dir: folder in which named data sets are looked for first; the run's by default.
        label: label column of a table; the training data's by default.
        client: client column of a table, which is not an input.
        split: column of a table that says `train`, `val` or `test`.
        drop: columns to leave out, by name or pattern.
        encoding: encoding of a text file.
        delimiter: what separates the columns of a text file, or `tab`; by default recognised.
        unlabelled: `skip` leaves out rows of a table without a label, with a warning.
        test_fraction: test only this share of each class, drawn from data without a test part.
        clients: the client of every sample, if the run was given it and held out some of them (`test_clients`).

    Returns:
        The number of `samples`, which they were (`rows`: `run`, `test`, `all` or `drawn`), and the metrics.
    """
    run_folder, found = RunFolder(Path(folder)), trained(Path(folder), model, trust, adjust)
    reading: dict[str, Any] = {
        "data_dir": None if data_dir is None else str(data_dir),
        "label": label,
        "client": client,
        "split": split,
        "drop": tuple(drop),
        "encoding": encoding,
        "delimiter": delimiter,
        "unlabelled": unlabelled,
    }
    config = run_folder.config()
    moved = config if data_dir is None else replace(config, data=replace(config.data, data_dir=str(data_dir)))
    own = own_rows(found, moved, dataset, clients)
    if own is None:
        rows = load_rows(dataset, found.schema, **reading)
        which = rows.part if test_fraction is None else "drawn"
        return _measured(found, rows if test_fraction is None else _drawn(rows, test_fraction), which, run_folder)
    _refuse_reading({**reading, "test_fraction": test_fraction}, moved)
    return _measured(found, own, "run", run_folder)


def own_rows(
    found: Trained, config: Config, dataset: DataLike | None, clients: ClientsLike | None = None
) -> Rows | None:
    """The rows that the run held out, if this is its own data; None for other data.

    Raises:
        ValueError: if this is the run's own source, but no longer what the run was trained on.
    """
    must_be_own = dataset is None or _same_path(str(dataset), config.data.dataset)
    if must_be_own and found.fingerprint is None:
        raise ValueError(f"the folder does not know the data that {config.title} was trained on: name a dataset")
    _require_clients(config, dataset, clients)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this may not be the run's data, and is then read again
        try:
            whole = _read_as_run(config, dataset, clients)
        except (ValueError, OSError):
            if must_be_own:
                raise
            return None
    if fingerprint(whole) == found.fingerprint:
        return _test_rows(whole)
    if must_be_own:
        raise ValueError(
            f"{config.data.title} has changed since the run was trained on it: its test rows cannot be told "
            "from its training rows. Put new rows into a file of their own, or restore the old one"
        )
    return None


def _require_clients(config: Config, dataset: DataLike | None, clients: ClientsLike | None) -> None:
    """Require the clients of the samples if the run divided its data by them."""
    told = clients is not None or dataset is None or isinstance(dataset, (str, Path))
    if config.data.test_clients is not None and config.partition.name.startswith(CLIENT_IDS) and not told:
        raise ValueError(
            "the run held out clients that it was given as clients=…: pass them again, or the rows that it tested "
            "cannot be told from those that it trained on"
        )


def _read_as_run(config: Config, dataset: DataLike | None, clients: ClientsLike | None) -> Dataset:
    """The data, read and split as the run did."""
    if isinstance(dataset, Dataset):
        return dataset
    if clients is not None:
        config = replace(config, partition=Component(CLIENT_IDS, value=clients))
    if dataset is None or isinstance(dataset, (str, Path)):
        named = config.data.dataset if dataset is None else str(dataset)
        return run_dataset(replace(config, data=replace(config.data, dataset=named)))
    return run_dataset(replace(config, source=dataset))


def _refuse_reading(given: Mapping[str, Any], config: Config) -> None:
    """Refuse options that would read the run's own data in another way than the run did."""
    for option, value in given.items():
        if value not in (None, ()) and value != (used := getattr(config.data, option)):
            raise ValueError(
                f"{option} = {value!r} is for other data: the run's own are read as the run did, with {used!r}, "
                "and the rows that it held out are tested"
            )


def _drawn(rows: Rows, fraction: float) -> Rows:
    """A share of each class of data without a test part."""
    require(0 < fraction < 1, "test_fraction", fraction, "above 0 and below 1")
    if rows.part == "test":
        raise ValueError(f"test_fraction = {fraction} is for data without a test part: {rows.name} has one")
    assert rows.y is not None
    chosen = stratified_split(rows.y, fraction, np.random.default_rng(0))[1]
    clients = None if rows.clients is None else rows.clients[chosen]
    return replace(rows, x=rows.x[chosen], y=rows.y[chosen], ids=None, clients=clients)


def _same_path(given: str, held: str) -> bool:
    return given == held or (os.path.exists(given) and os.path.exists(held) and os.path.samefile(given, held))


def _test_rows(dataset: Dataset) -> Rows:
    return Rows(dataset.name, "test", dataset.x_test, dataset.y_test, None, dataset.test_clients)


def _measured(found: Trained, rows: Rows, which: str, folder: RunFolder) -> EvaluationRecord:
    """The loss and the metrics of the model on these rows."""
    assert rows.y is not None
    labels = torch.from_numpy(rows.y)
    network = Network(found.module, classes=len(found.schema.classes))
    tested = evaluate_network(network, *network.initial(), found.inputs(rows.x), labels, len(found.schema.classes))
    counts, rule = np.array(folder.summary().train_counts), folder.config().run.shot_groups
    metrics = summarise(tested.confusion, counts, rule)
    clients: dict[str, Any] = {}
    if rows.clients is not None:
        measure = OnOwnSamples.of(rows.clients)
        accuracy = measure(tested)
        clients = {**spread_over_clients(accuracy), "client_accuracy": named(accuracy, measure.names)}
    return EvaluationRecord(
        samples=len(rows.x),
        rows=which,
        classes=found.schema.classes,
        test_loss=tested.loss,
        test_ece=expected_calibration_error(tested),
        **vars(metrics),
        **clients,
    )
