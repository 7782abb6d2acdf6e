"""`fedwcm.partition`: divide a data set among clients, to look at it before training or to use it elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Literal

from fedwcm.api.description import describe_run, describe_settings, flags_in
from fedwcm.config.arguments import ClientsLike, ConfigLike, DataLike, PartitionLike
from fedwcm.config.component_text import named_options
from fedwcm.config.partitioning import divide
from fedwcm.config.resolve import resolve
from fedwcm.config.schema import Component, Config
from fedwcm.config.settings import CLIENT_IDS, Settings, from_settings, name_in
from fedwcm.core.checks import unknown
from fedwcm.core.types import Ints
from fedwcm.data import Dataset
from fedwcm.data.normalize import Normalizer
from fedwcm.data.partition import PARTITIONS, PartitionStatistics, counts_of, describe


@dataclass(frozen=True, eq=False)
class Division:
    """A data set divided among clients.

    Args:
        config: the options, those included that follow from the data.
        dataset: all samples.
        rows: for each client, the rows of `dataset.x_train` that it holds.
        counts: the clients' samples of each class, clients in rows.
        statistics: sizes, classes per client, and distances from the global distribution.
        normalizer: turns inputs of the data set into those of the model.
    """

    config: Config
    dataset: Dataset
    rows: tuple[Ints, ...]
    counts: Ints
    statistics: PartitionStatistics
    normalizer: Normalizer

    @property
    def classes(self) -> tuple[str, ...]:
        return self.dataset.classes

    def __repr__(self) -> str:
        title, way = self.config.data.title, self.config.partition.name
        return f"Division of {self.counts.sum():,} samples of {title} among {len(self)} clients: {way}"

    def __len__(self) -> int:
        """How many clients there are."""
        return len(self.rows)


def partition(
    *,
    config: ConfigLike | None = None,
    settings: Mapping[str, object] | None = None,
    dataset: DataLike | None = None,
    data_dir: str | Path | None = None,
    label: str | None = None,
    client: str | None = None,
    group: str | None = None,
    split: str | None = None,
    features: Sequence[str] | None = None,
    drop: Sequence[str] | None = None,
    impute: Literal["median"] | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    unlabelled: Literal["skip"] | None = None,
    image_size: int | None = None,
    test_fraction: float | None = None,
    test_clients: float | Sequence[str] | Sequence[int] | None = None,
    val_fraction: float | None = None,
    imbalance: float | Literal["none"] | None = None,
    partition: PartitionLike | None = None,
    clients: ClientsLike | None = None,
    beta: float | None = None,
    seed: int | None = None,
    trust: bool = False,
) -> Division:
    """Divide a data set among clients, as a run with the same options would.

    Args:
        config: a TOML file or a `Config` to start from.
        settings: dotted options, such as `{"partition.min_samples": 5}`.
        dataset: a named data set, a file, a folder of images or `hub:ID`; or data: `(x, y)`,
            `(x_train, y_train, x_test, y_test)` or a dict of arrays or tensors, a dict of `(x, y)` by `train`,
            `val` and `test`, a list or dict of each client's `(x, y)`, a pandas DataFrame, a
            `torch.utils.data.Dataset`, a Hugging Face `Dataset`, a `fedwcm.Dataset`.
        data_dir: folder in which named data sets are looked for first.
        label: label column of a table or DataFrame.
        client: client column of a table or DataFrame: the natural partition.
        group: column of what must stay together, such as the patient: on one side of every split.
        split: column that says `train`, `val` or `test`.
        features: columns of a table to use, by name or pattern.
        drop: columns of a table to leave out, by name or pattern.
        impute: `median`: fill in missing values, which are refused otherwise.
        encoding: encoding of a text file, such as `latin-1`.
        delimiter: separator of a text file's columns, or `tab`; by default recognised.
        unlabelled: `skip`: leave out rows without a label, which are refused otherwise.
        image_size: side of the square that images are scaled and cut to.
        test_fraction: share held out for testing where the data has no test part; 0.2 by default.
        test_clients: hold out whole clients for testing instead: their share, or their names.
        val_fraction: share of the training data held out for validation.
        imbalance: samples of the rarest class over those of the most frequent, in (0, 1], made by leaving samples
            out; `"none"` for the data as it is. Named data sets have 0.1 by default.
        partition: how samples are divided: a name, `package.module:Name`, a `Partition` or its class.
        clients: number of clients; or the client of every training sample, in the order of the data.
        beta: Dirichlet concentration: smaller is more heterogeneous.
        seed: seed of all randomness.
        trust: import what a run's folder, given as `config`, names as `package.module:Name`.
    """
    return _divided(describe_run(None, config, settings, flags_in(locals()), trust=trust))


def partitions(
    ways: Sequence[str],
    *,
    config: ConfigLike | None = None,
    settings: Mapping[str, object] | None = None,
    dataset: DataLike | None = None,
    data_dir: str | Path | None = None,
    label: str | None = None,
    client: str | None = None,
    group: str | None = None,
    split: str | None = None,
    features: Sequence[str] | None = None,
    drop: Sequence[str] | None = None,
    impute: Literal["median"] | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    unlabelled: Literal["skip"] | None = None,
    image_size: int | None = None,
    test_fraction: float | None = None,
    test_clients: float | Sequence[str] | Sequence[int] | None = None,
    val_fraction: float | None = None,
    imbalance: float | Literal["none"] | None = None,
    clients: ClientsLike | None = None,
    beta: float | None = None,
    seed: int | None = None,
    trust: bool = False,
) -> dict[str, Division]:
    """Divide a data set in several ways.

    Options that all share, such as `clients` and `beta`, are for those partitions that have them; an option that
    none has is refused.

    Args:
        ways: partitions, each `NAME` or `NAME[option=value, …]`.
        config: a TOML file or a `Config` to start from.
        settings: dotted options, such as `{"partition.min_samples": 5}`.
        dataset: a named data set, a file, a folder of images or `hub:ID`; or data: `(x, y)`,
            `(x_train, y_train, x_test, y_test)` or a dict of arrays or tensors, a dict of `(x, y)` by `train`,
            `val` and `test`, a list or dict of each client's `(x, y)`, a pandas DataFrame, a
            `torch.utils.data.Dataset`, a Hugging Face `Dataset`, a `fedwcm.Dataset`.
        data_dir: folder in which named data sets are looked for first.
        label: label column of a table or DataFrame.
        client: client column of a table or DataFrame: the natural partition.
        group: column of what must stay together, such as the patient: on one side of every split.
        split: column that says `train`, `val` or `test`.
        features: columns of a table to use, by name or pattern.
        drop: columns of a table to leave out, by name or pattern.
        impute: `median`: fill in missing values, which are refused otherwise.
        encoding: encoding of a text file, such as `latin-1`.
        delimiter: separator of a text file's columns, or `tab`; by default recognised.
        unlabelled: `skip`: leave out rows without a label, which are refused otherwise.
        image_size: side of the square that images are scaled and cut to.
        test_fraction: share held out for testing where the data has no test part; 0.2 by default.
        test_clients: hold out whole clients for testing instead: their share, or their names.
        val_fraction: share of the training data held out for validation.
        imbalance: samples of the rarest class over those of the most frequent, in (0, 1], made by leaving samples
            out; `"none"` for the data as it is. Named data sets have 0.1 by default.
        clients: number of clients.
        beta: Dirichlet concentration: smaller is more heterogeneous.
        seed: seed of all randomness.
        trust: import what a run's folder, given as `config`, names as `package.module:Name`.
    """
    common = describe_settings(None, config, settings, flags_in(locals()), trust=trust)
    if name_in(common, "partition") == CLIENT_IDS:
        raise ValueError("clients=… assigns every sample to a client, which is a partition: use fedwcm.partition")
    known = {key for way in ways for key in _options_of(way)}
    for key in common:
        if key.startswith("partition.") and key not in {"partition.name", *known}:
            raise unknown("option of these partitions:", key, known)
    return {way: _divided(from_settings(_partition_settings(way, common))) for way in ways}


def _divided(config: Config) -> Division:
    data = divide(config)
    counts = counts_of(data.parts, data.train_labels, data.dataset.num_classes)
    rows = tuple(data.train_rows[part] for part in data.parts)
    return Division(data.config, data.dataset, rows, counts, describe(counts), data.normalizer)


def _options_of(way: str) -> set[str]:
    """The dotted options of a partition."""
    name, _ = named_options(way)
    if name not in PARTITIONS and ":" not in name:
        raise unknown("partition", name, PARTITIONS)
    found = resolve("partition", Component(name)) if ":" in name else PARTITIONS[name]
    return {f"partition.{field.name}" for field in fields(found)} if is_dataclass(found) else set()


def _partition_settings(way: str, common: Settings) -> Settings:
    """The settings of a run that divides its data in this way, and is otherwise as these say."""
    (name, options), known = named_options(way), _options_of(way)
    kept = {key: value for key, value in common.items() if key in known or not key.startswith("partition.")}
    return {**kept, "partition.name": name, **{f"partition.{key}": value for key, value in options.items()}}
