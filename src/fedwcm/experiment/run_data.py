"""The samples of a run as clients and evaluation need them: loaded and divided, or generated."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from numpy.typing import NDArray

from fedwcm.config.schema import PARTITION_DEFAULTS, Config, DataOptions
from fedwcm.core.batch import LazyInputs
from fedwcm.core.checks import require
from fedwcm.core.types import Ints
from fedwcm.data import Dataset, synthetic
from fedwcm.data.inputs import Normalizer, model_inputs
from fedwcm.engine.evaluate import LabelledTensors
from fedwcm.engine.federation import Federation, InMemoryFederation
from fedwcm.experiment.components import require_default
from fedwcm.experiment.partitioning import PartitionedData, partition_data, resolved_data
from fedwcm.experiment.rounds import chosen_device

GENERATED = ("dataset", "data_dir", "shared", "imbalance")
"""Data options that synthetic data accepts."""


@dataclass(frozen=True, eq=False)
class RunData:
    """The samples of a run, loaded or generated, and the resolved configuration."""

    config: Config
    input_shape: tuple[int, ...]
    classes: Sequence[str]
    federation: Federation
    test: LabelledTensors
    val: LabelledTensors | None
    normalizer: Normalizer | None
    normalization: str = ""
    dataset: Dataset | None = None
    client_names: tuple[str, ...] = ()


def run_data(config: Config) -> RunData:
    """Return the samples of a run, divided among its clients."""
    device = chosen_device(config.run.device)
    if config.data.dataset == synthetic.NAME:
        return _generate(config, device)
    return _load(config, device)


def _load(config: Config, device: torch.device) -> RunData:
    """Return the samples of a data set that is loaded and divided."""
    data = partition_data(config)
    dataset = data.dataset
    return RunData(
        data.config,
        dataset.input_shape,
        dataset.classes,
        _federation(data, device),
        _tensors(data, dataset.x_test, dataset.y_test, device),
        _validation(data, device),
        data.normalizer,
        data.normalization,
        dataset,
        data.client_names,
    )


def _federation(data: PartitionedData, device: torch.device) -> InMemoryFederation:
    """Return the clients: over the rows that are used, or over the whole array if it is too large to be copied."""
    x, rows, classes = data.dataset.x_train, data.train_rows, data.dataset.num_classes
    inputs = model_inputs(x, data.normalizer, device, rows, prepared=data.are_small)
    if isinstance(inputs, LazyInputs):
        return InMemoryFederation(inputs, data.dataset.y_train, [rows[part] for part in data.parts], classes)
    return InMemoryFederation(inputs, data.train_labels, data.parts, classes, rows)


def _generate(config: Config, device: torch.device) -> RunData:
    """Return samples that are generated while clients train."""
    options = resolved_data(config.data)
    for field in fields(DataOptions):
        if field.name not in GENERATED:
            require_default("data", options, field.name, "for synthetic data")
    imbalance = 1.0 if isinstance(options.imbalance, str) else options.imbalance
    division: dict[str, Any] = {**PARTITION_DEFAULTS, **config.partition.options}
    for option in division.keys() - PARTITION_DEFAULTS.keys():
        raise ValueError(f"partition.{option} is not an option of synthetic data: it has clients and beta")
    require(config.partition.name == "auto", "partition.name", config.partition.name, "auto for synthetic data")
    federation = synthetic.SyntheticFederation(
        **division, imbalance=imbalance, seed=config.run.seed, device=device
    )
    inputs, labels = federation.held_out()
    return RunData(
        replace(config, data=options, partition=replace(config.partition, options=division)),
        (synthetic.FEATURES,),
        [str(c) for c in range(synthetic.CLASSES)],
        federation,
        LabelledTensors(torch.from_numpy(inputs).to(device), torch.from_numpy(labels).to(device)),
        None,
        None,
    )


def _tensors(data: PartitionedData, inputs: NDArray[Any], labels: Ints, device: torch.device) -> LabelledTensors:
    prepared = model_inputs(inputs, data.normalizer, device, prepared=data.are_small)
    return LabelledTensors(prepared, torch.from_numpy(labels).to(device))


def _validation(data: PartitionedData, device: torch.device) -> LabelledTensors | None:
    """Return the data's own validation set or, if it has none, the samples held out from the training set."""
    if data.dataset.x_val is not None and data.dataset.y_val is not None:
        return _tensors(data, data.dataset.x_val, data.dataset.y_val, device)
    if not len(data.val_rows):
        return None
    rows = data.val_rows
    return _tensors(data, data.dataset.x_train[rows], data.dataset.y_train[rows], device)
