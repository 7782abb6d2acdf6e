"""`fedwcm.evaluate`: test a trained model, on its run's own test rows or on other data."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedwcm.api.trained import Trained, trained
from fedwcm.api.types import ClientsLike, DataLike, ModelLike
from fedwcm.config.objects import CLIENT_IDS, Objects
from fedwcm.config.partitioning import run_dataset
from fedwcm.config.schema import Config
from fedwcm.data import Dataset, load_dataset, load_rows
from fedwcm.data.fingerprint import fingerprint
from fedwcm.data.inputs import are_small, model_inputs
from fedwcm.data.samples import Rows
from fedwcm.engine.evaluate import evaluate as evaluate_network
from fedwcm.engine.network import Network
from fedwcm.metrics.classification import summarise
from fedwcm.metrics.clients import OnOwnSamples, named, spread_over_clients
from fedwcm.runs.folder import RunFolder
from fedwcm.runs.records import EvaluationRecord


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
    test_fraction: float | None = None,
    clients: ClientsLike | None = None,
) -> EvaluationRecord:
    """Test the model of a run. Columns and classes are matched by name.

    The run's own data is recognised by its content: what is tested then are the very rows that the run held out.
    Of other data it is the test part if there is one, and else every row.

    Args:
        folder: the run's folder.
        dataset: what to test on, any source that `fedwcm.run` takes; the run's own test rows by default.
        model: what takes the trained weights, as in `fedwcm.load`.
        trust: import the factory that the folder names as `package.module:factory`.
        adjust: correct the model for the class distribution of its training data, as in `fedwcm.load`.
        data_dir: folder in which named data sets are looked for first.
        label: label column of a table; the training data's by default.
        client: client column of a table, which is not an input.
        split: column of a table that says `train`, `val` or `test`.
        drop: columns to leave out, by name or pattern.
        encoding: encoding of a text file.
        test_fraction: test only this share of each class, drawn from data without a test part.
        clients: the client of every sample, if the run was given it and held out some of them (`test_clients`).

    Returns:
        The number of `samples`, which they were (`rows`: `run`, `test`, `all` or `drawn`), and the metrics.
    """
    found = trained(Path(folder), model, trust, adjust)
    own = own_rows(found, RunFolder(Path(folder)).config(), dataset, clients)
    reading: dict[str, Any] = {
        "data_dir": data_dir,
        "label": label,
        "client": client,
        "split": split,
        "drop": tuple(drop),
        "encoding": encoding,
    }
    if own is not None and test_fraction:
        raise ValueError(
            "test_fraction is for other data: of the run's own data, the rows that it held out are tested"
        )
    if own is not None:
        rows, which = own, "run"
    elif test_fraction:
        drawn = load_dataset(dataset, **reading, test_fraction=test_fraction, schema=found.schema)
        rows, which = _test_rows(drawn), "drawn"
    else:
        rows = load_rows(dataset, found.schema, **reading)
        which = rows.part
    return _measured(found, rows, which, RunFolder(Path(folder)))


def own_rows(
    found: Trained, config: Config, dataset: DataLike | None, clients: ClientsLike | None = None
) -> Rows | None:
    """The rows that the run held out, if this is its own data; None for other data.

    Raises:
        ValueError: if this is the run's own source, but no longer what the run was trained on.
    """
    held = config.data.dataset
    is_same = dataset is None or _same_path(str(dataset), held)
    is_text = dataset is None or isinstance(dataset, (str, Path))
    if is_same and found.fingerprint is None:
        raise ValueError(f"the folder does not know the data that {config.title} was trained on: name a dataset")
    source = (
        config
        if dataset is None or not is_text
        else replace(config, data=replace(config.data, dataset=str(dataset)))
    )
    is_known = clients is not None or not config.partition.name.startswith(CLIENT_IDS)
    if config.data.test_clients is not None and not is_text and not is_known:
        raise ValueError(
            "the run held out clients that it was given as clients=…: pass them again, or the rows that it tested "
            "cannot be told from those that it trained on"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a reading that may be none
        try:
            given = Objects(dataset=None if is_text else dataset, client_ids=clients)
            whole = run_dataset(source, given)
        except (ValueError, OSError):
            if dataset is None:
                raise
            return None
    if fingerprint(whole) == found.fingerprint:
        return _test_rows(whole)
    if is_same:
        raise ValueError(
            f"{config.data.title} is not what it was when the run was trained on it: its test rows cannot be told "
            "from its training rows. Put new rows into a file of their own, or restore the old one"
        )
    return None


def _same_path(given: str, held: str) -> bool:
    return given == held or (os.path.exists(given) and os.path.exists(held) and os.path.samefile(given, held))


def _test_rows(dataset: Dataset) -> Rows:
    return Rows(dataset.name, "test", dataset.x_test, dataset.y_test, None, dataset.test_clients)


def _measured(found: Trained, rows: Rows, which: str, folder: RunFolder) -> EvaluationRecord:
    """The loss and the metrics of the model on these rows."""
    assert rows.y is not None
    small = are_small(rows.x, len(rows.x))
    inputs = model_inputs(rows.x, found.normalizer.normalizer, torch.device("cpu"), prepared=small)
    labels = torch.from_numpy(rows.y)
    network = Network(found.module)
    tested = evaluate_network(network, *network.initial(), inputs, labels, len(found.schema.classes))
    counts, rule = np.array(folder.summary().train_counts), folder.config().run.shot_groups
    metrics = summarise(tested.confusion, counts, rule)
    clients: dict[str, Any] = {}
    if rows.clients is not None:
        measure = OnOwnSamples.of(rows.clients)
        accuracy = measure(tested)
        clients = {**spread_over_clients(accuracy), "client_accuracy": named(accuracy, measure.names)}
    return EvaluationRecord(samples=len(rows.x), rows=which, test_loss=tested.loss, **vars(metrics), **clients)
