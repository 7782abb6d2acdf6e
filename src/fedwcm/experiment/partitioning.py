"""The data set of a run, its long tail, and its division among the clients."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwcm.config.options import make
from fedwcm.config.resolve import object_needed, resolve
from fedwcm.config.schema import PARTITION_DEFAULTS, Component, Config, DataOptions
from fedwcm.config.settings import CLIENT_IDS, OBJECT
from fedwcm.core.checks import require, require_known
from fedwcm.core.rng import Purpose, generator
from fedwcm.core.types import Ints
from fedwcm.data import DATASETS, Dataset, load_dataset, synthetic
from fedwcm.data.dataset import quote_names
from fedwcm.data.fingerprint import array_digest, fingerprint
from fedwcm.data.inputs import Normalizer, are_small, choose_normalizer
from fedwcm.data.longtail import long_tail
from fedwcm.data.objects import as_array
from fedwcm.data.partition import PARTITIONS, Natural, Partition, PartitionStatistics, counts_of, describe
from fedwcm.data.partition.protocol import check_parts
from fedwcm.data.read_options import ReadOptions
from fedwcm.data.split import client_split, stratified_split
from fedwcm.experiment.components import options_of, require_default, with_options
from fedwcm.experiment.models import chosen_model
from fedwcm.models import has_embedding

READ_OPTIONS = {field.name for field in fields(DataOptions)} & {field.name for field in fields(ReadOptions)}
"""Options of the data that say how its source is read."""

NAMED_IMBALANCE = 0.1
"""Default long tail of named data sets, as in the paper."""


@dataclass(frozen=True, eq=False)
class PartitionedData:
    """A data set divided among clients.

    Args:
        config: the options, those included that follow from the data.
        dataset: all samples.
        train_rows: the rows of `dataset.x_train` that clients train on.
        val_rows: those that are held out for validation.
        server_rows: those that are the server's own.
        parts: for each client, its places in `train_rows`.
        normalizer: turns inputs of the data set into those of the model.
        normalization: what it does, in one sentence.
    """

    config: Config
    dataset: Dataset
    train_rows: Ints
    val_rows: Ints
    server_rows: Ints
    parts: list[Ints]
    normalizer: Normalizer
    normalization: str

    @cached_property
    def rows(self) -> tuple[Ints, ...]:
        """For each client, the rows of `dataset.x_train` that it holds."""
        return tuple(self.train_rows[part] for part in self.parts)

    @cached_property
    def counts(self) -> Ints:
        """The clients' samples of each class, clients in rows."""
        return counts_of(self.parts, self.train_labels, self.dataset.num_classes)

    @cached_property
    def statistics(self) -> PartitionStatistics:
        """Sizes, classes per client, and distances from the global distribution."""
        return describe(self.counts)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.dataset.classes

    def __repr__(self) -> str:
        size, title = f"{len(self.train_rows):,} samples of {self.config.data.title}", self.config.partition.name
        return f"PartitionedData: {size} among {len(self)} clients, {title}"

    def __len__(self) -> int:
        """Return how many clients there are."""
        return len(self.parts)

    @property
    def are_small(self) -> bool:
        """Whether the samples are few enough to be prepared for the model in advance."""
        return are_small(self.dataset.x_train, len(self.train_rows))

    @property
    def server_counts(self) -> Ints:
        """The server's own samples of each class."""
        return np.bincount(self.dataset.y_train[self.server_rows], minlength=self.dataset.num_classes)

    @property
    def train_labels(self) -> Ints:
        return self.dataset.y_train[self.train_rows]

    @property
    def client_names(self) -> tuple[str, ...]:
        """The names of the data's own clients, in the order of the parts; empty if a partition made them."""
        ids = self.dataset.client_ids
        if ids is None or self.config.partition.name.partition("#")[0] not in ("natural", CLIENT_IDS):
            return ()
        return tuple(self.dataset.client_names[i] for i in np.unique(ids[self.train_rows]))


def partition_data(config: Config) -> PartitionedData:
    """Load the data, create the long tail, hold out samples, and divide the rest among the clients."""
    seed, options = config.run.seed, resolve_data(config.data)
    _refuse_tail_options(options)
    dataset = run_dataset(config)
    images = f"false for inputs of shape {dataset.input_shape}: only images are flipped and cropped"
    require(dataset.is_image or not options.augment, "data.augment", options.augment, images)
    if config.source is not None:
        options = replace(options, dataset=f"{OBJECT}{dataset.name}#{dataset.digest or fingerprint(dataset)}")
    rows = server_rows = np.arange(len(dataset.y_train))
    if options.server_before_tail:
        rows, server_rows = _draw_for_server(dataset, rows, options, seed)
    if not isinstance(options.imbalance, str):
        rng = generator(seed, Purpose.LONG_TAIL)
        rows = rows[long_tail(dataset.y_train[rows], options.imbalance, rng, options.profile, options.n_max)]
    rng = generator(seed, Purpose.VALIDATION, options.val_draw)
    rows, val_rows = _hold_out_validation(dataset, rows, options, rng)
    if not options.server_before_tail:
        rows, server_rows = _draw_for_server(dataset, rows, options, seed)
    away = rows[:0]
    if options.validation_clients is not None and dataset.client_ids is not None:
        away = np.unique(dataset.client_ids[val_rows])
    partition, component = _partition(config.partition, dataset, rows, away)
    parts = partition(dataset.y_train[rows], generator(seed, Purpose.PARTITION))
    if component.value is not None or ":" in component.name:
        name = getattr(partition, "__qualname__", type(partition).__qualname__)
        parts = check_parts(f"partition {name}", parts, len(rows), getattr(partition, "clients", None))
    config = replace(config, data=options, partition=component)
    embeds = dataset.is_integer and _embeds(config.model, dataset)
    normalizer, normalization = choose_normalizer(dataset.x_train, options.normalize, rows, embeds=embeds)
    return PartitionedData(config, dataset, rows, val_rows, server_rows, parts, normalizer, normalization)


def _draw_for_server(dataset: Dataset, rows: Ints, options: DataOptions, seed: int) -> tuple[Ints, Ints]:
    """Return the rows that are left and those of the server's own; warn of classes of which it has none."""
    if not options.server_fraction:
        return rows, rows[:0]
    labels, rng = dataset.y_train[rows], generator(seed, Purpose.SERVER_DATA)
    kept, drawn = stratified_split(labels, options.server_fraction, rng)
    if len(missing := np.setdiff1d(labels, labels[drawn])):
        names = quote_names([dataset.classes[code] for code in missing])
        text = f"data.server_fraction = {options.server_fraction:g} leaves the server no sample of class {names}"
        warnings.warn(f"{dataset.name}: {text}; choose a larger share", stacklevel=3)
    return rows[kept], rows[drawn]


def _hold_out_validation(
    dataset: Dataset, rows: Ints, options: DataOptions, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Return the rows to train on and those held out for validation: of each class, or of whole clients."""
    if dataset.y_val is not None:
        for option in ("val_fraction", "val_clients"):
            require_default("data", options, option, f"for {dataset.name}, which has a validation part")
    if (chosen := options.validation_clients) is not None:
        kept, held_out = _hold_out_clients(dataset, rows, chosen, rng)
    elif options.val_fraction:
        groups = None if dataset.group_ids is None else dataset.group_ids[rows]
        kept, held_out = stratified_split(dataset.y_train[rows], options.val_fraction, rng, groups)
    else:
        return rows, rows[:0]
    _warn_of_unvalidated(dataset, rows[kept], rows[held_out])
    return rows[kept], rows[held_out]


def _hold_out_clients(
    dataset: Dataset, rows: Ints, chosen: float | Sequence[object], rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Return positions of rows to train on, and of those of whole clients for validation, which lack no class."""
    if dataset.client_ids is None:
        raise ValueError(
            f"val_clients = {chosen!r} needs data with clients of its own, which {dataset.name} does not have: "
            "name their column (--client COLUMN), or pass clients=[…] in Python"
        )
    names, labels = np.array(dataset.client_names)[dataset.client_ids[rows]], dataset.y_train[rows]
    if isinstance(chosen, float):
        chosen = _draw_clients(names, labels, chosen, rng)
    kept, held_out = client_split(names, chosen, rng, "val_clients")
    if len(lost := np.setdiff1d(labels, labels[kept])):
        classes = quote_names([dataset.classes[code] for code in lost])
        raise ValueError(f"val_clients = {list(chosen)} are the only ones with the class {classes}: name others")
    return kept, held_out


def _draw_clients(names: NDArray[np.str_], labels: Ints, share: float, rng: np.random.Generator) -> list[str]:
    """Return a share of the clients, at least one, without those that alone have the rest of a class."""
    clients, ids = np.unique(names, return_inverse=True)
    counts = np.zeros((len(clients), int(labels.max()) + 1), dtype=np.int64)
    np.add.at(counts, (ids, labels), 1)
    left = counts.sum(axis=0)
    drawn: list[str] = []
    count = min(max(1, int(len(clients) * share + 0.5)), len(clients) - 1)
    for client in rng.permutation(len(clients)):
        if len(drawn) < count and ((left > counts[client]) | (left == 0)).all():
            left = left - counts[client]
            drawn.append(str(clients[client]))
    require(bool(drawn), "val_clients", share, "none: each of the clients is the only one with some class")
    return drawn


def _warn_of_unvalidated(dataset: Dataset, rows: Ints, val_rows: Ints) -> None:
    """Warn if the validation data has none of a class: its share of a rare class rounds to no sample."""
    left, counts = np.unique(dataset.y_train[rows], return_counts=True)
    missing = ~np.isin(left, dataset.y_train[val_rows])
    if missing.any():
        names = quote_names([dataset.classes[code] for code in left[missing]])
        more = "; choose a larger share for validation" if counts[missing].max() > 1 else ""
        text = f"{dataset.name}: no validation sample of class {names}"
        warnings.warn(f"{text}: metrics on validation data are those of the other classes{more}", stacklevel=2)


def run_dataset(config: Config) -> Dataset:
    """Return the data set of a run before the long tail, with the test set that the run's seed selects."""
    options, source = config.data, config.source
    if source is None and options.dataset.startswith(OBJECT):
        raise object_needed("data", options.dataset)
    if options.dataset == synthetic.NAME:
        raise ValueError("data.dataset = 'synthetic' has nothing to load: its samples are drawn as clients train")
    return load_dataset(
        options.dataset if source is None else source,
        data_dir=options.data_dir,
        client_ids=config.partition.value if _assigns_clients(config.partition) else None,
        seed=config.run.seed,
        **{name: getattr(options, name) for name in READ_OPTIONS},
    )


def resolve_data(options: DataOptions) -> DataOptions:
    """Return the data options, with the default long tail for named data sets."""
    if options.imbalance != "auto":
        return options
    named = options.dataset in (*DATASETS, synthetic.NAME)
    return replace(options, imbalance=NAMED_IMBALANCE if named else "none")


def _refuse_tail_options(options: DataOptions) -> None:
    """Refuse options of a long tail where there is none to be made."""
    if not isinstance(options.imbalance, str):
        return
    for option in ("profile", "n_max", "server_before_tail"):
        require_default("data", options, option, "without a long tail: ask for one with data.imbalance")


def _assigns_clients(chosen: Component) -> bool:
    """Return whether the partition is the client of every sample, given as `clients=…`."""
    return chosen.value is not None and chosen.name.startswith(CLIENT_IDS)


def _partition(chosen: Component, dataset: Dataset, rows: Ints, away: Ints) -> tuple[Partition, Component]:
    """Return the partition and its resolved options; by default the data's own clients if any, else `equal`."""
    name = chosen.name
    if _assigns_clients(chosen):
        assert dataset.client_ids is not None
        _refuse_options(chosen)
        digest = array_digest(as_array(chosen.value))  # before a test part is drawn: the same for all seeds
        return _natural(dataset, rows, away), replace(chosen, name=f"{CLIENT_IDS}#{digest}")
    code: Any = resolve("partition", chosen) if chosen.value is None and ":" in name else chosen.value
    if isinstance(code, type):
        return _own_partition(code, chosen)
    if code is not None:
        return with_options(code, chosen.options, "partition"), chosen
    if name == "auto":
        name = "natural" if dataset.client_ids is not None else "equal"
    if name == "natural":
        if dataset.client_ids is None:
            raise ValueError(
                f"partition.name = 'natural' needs the clients of {dataset.name}: name their column with --client"
            )
        _refuse_options(chosen)
        return _natural(dataset, rows, away), Component(name)
    require_known("partition", name, PARTITIONS)
    known = {field.name for field in fields(PARTITIONS[name])}
    defaults = {key: value for key, value in PARTITION_DEFAULTS.items() if key in known}
    options = {**defaults, **chosen.options}
    return make(PARTITIONS[name], options, "partition"), Component(name, options)


def _own_partition(code: type, chosen: Component) -> tuple[Partition, Component]:
    """Return a partition of a class of the user's own, made with these options."""
    needed = {f.name for f in fields(code) if f.default is f.default_factory} if is_dataclass(code) else set()
    defaults = {key: value for key, value in PARTITION_DEFAULTS.items() if key in needed}
    partition: Partition = make(code, {**defaults, **chosen.options}, "partition")
    require(
        callable(partition),
        "partition.name",
        chosen.name,
        "a class whose instances are called with labels and a rng",
    )
    return partition, replace(chosen, options=options_of(partition))


def _natural(dataset: Dataset, rows: Ints, away: Ints) -> Natural:
    """Return the data's own clients, without those of whom the long tail or validation leave no sample.

    `away` are those held out for validation.
    """
    assert dataset.client_ids is not None
    ids = dataset.client_ids[rows]
    if len(lost := np.setdiff1d(dataset.client_ids, [*ids, *away])):
        names = quote_names([dataset.client_names[i] for i in lost])
        text = "the long tail and the validation part leave no training sample of client"
        warnings.warn(f"{dataset.name}: {text} {names}; dropped as client", stacklevel=2)
    return Natural(client_ids=ids)


def _refuse_options(chosen: Component) -> None:
    for option in chosen.options:
        raise ValueError(f"partition.{option} is not an option of 'natural': the data says who the clients are")


def _embeds(model: Component, dataset: Dataset) -> bool:
    """Return whether the model has an embedding for integers; the model is built to find out."""
    return has_embedding(chosen_model(model, dataset.input_shape, dataset.num_classes, 0)[0])
