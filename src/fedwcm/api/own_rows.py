"""Which rows of its data a trained model was tested and validated on: known again by their content."""

import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedwcm.api.arguments import ClientsLike, DataLike
from fedwcm.api.trained import Trained
from fedwcm.config.schema import Component, Config
from fedwcm.config.settings import CLIENT_IDS
from fedwcm.data import Dataset
from fedwcm.data.fingerprint import fingerprint
from fedwcm.data.raw import InferenceRows
from fedwcm.experiment.partitioning import partition_data, run_dataset


def own_rows(
    trained: Trained, config: Config, dataset: DataLike | None, clients: ClientsLike | None = None
) -> InferenceRows | None:
    """Return the rows that the run held out, if this is its own data; None for other data.

    Raises:
        ValueError: if this is the run's own source, but no longer what the run was trained on.
    """
    must_be_own = dataset is None or _same_path(str(dataset), config.data.dataset)
    if must_be_own and trained.facts.fingerprint is None:
        raise ValueError(f"the folder does not know the data that {config.title} was trained on: name a dataset")
    _require_clients(config, dataset, clients)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this may not be the run's data, and is then read again
        try:
            whole = dataset if isinstance(dataset, Dataset) else run_dataset(as_run(config, dataset, clients))
        except (ValueError, OSError):
            if must_be_own:
                raise
            return None
    if fingerprint(whole) == trained.facts.fingerprint:
        return InferenceRows(whole.name, "test", whole.x_test, whole.y_test, None, whole.test_clients)
    if must_be_own:
        raise ValueError(
            f"{config.data.title} has changed since the run was trained on it: its test rows cannot be told "
            "from its training rows. Put new rows into a file of their own, or restore the old one"
        )
    return None


def _require_clients(config: Config, dataset: DataLike | None, clients: ClientsLike | None) -> None:
    """Require the clients of the samples if the run divided its data by them."""
    are_known = clients is not None or dataset is None or isinstance(dataset, (str, Path))
    if config.data.test_clients is not None and config.partition.name.startswith(CLIENT_IDS) and not are_known:
        raise ValueError(
            "the run held out clients that it was given as clients=…: pass them again, or the rows that it tested "
            "cannot be told from those that it trained on"
        )


def validation_rows(trained: Trained, config: Config, clients: ClientsLike | None = None) -> InferenceRows:
    """Return the validation rows of the run's own data."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run has said so
        data = partition_data(as_run(config, None, clients))
    if fingerprint(data.dataset) != trained.facts.fingerprint:
        raise ValueError(f"{config.data.title} has changed since the run was trained on it: name other data")
    dataset, rows = data.dataset, data.val_rows
    if dataset.x_val is not None:
        return InferenceRows(dataset.name, "all", dataset.x_val, dataset.y_val, None)
    if not len(rows):
        raise ValueError(
            f"{config.title} has no validation data, which this is fitted to: name some (--validation FILE), or "
            "train with --val-fraction 0.1"
        )
    return InferenceRows(dataset.name, "all", dataset.x_train[rows], dataset.y_train[rows], None)


def as_run(config: Config, dataset: DataLike | None, clients: ClientsLike | None) -> Config:
    """Return the configuration of the run with these objects."""
    if clients is not None:
        config = replace(config, partition=Component(CLIENT_IDS, value=clients))
    if dataset is None or isinstance(dataset, (str, Path)):
        named = config.data.dataset if dataset is None else str(dataset)
        return replace(config, data=replace(config.data, dataset=named))
    return replace(config, source=dataset)


def refuse_reading(reading: Mapping[str, Any], config: Config) -> None:
    """Refuse options that would read the run's own data in another way than the run did."""
    for option, value in reading.items():
        if value not in (None, ()) and value != (used := getattr(config.data, option)):
            raise ValueError(
                f"{option} = {value!r} is for other data: the run's own are read as the run did, with {used!r}, "
                "and the rows that it held out are tested"
            )


def _same_path(path: str, recorded: str) -> bool:
    return path == recorded or (
        os.path.exists(path) and os.path.exists(recorded) and os.path.samefile(path, recorded)
    )
