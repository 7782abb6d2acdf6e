"""Build everything that a run needs from its configuration: data, clients, model, method, engine."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedwcm.config.class_totals import claimed_counts, gather
from fedwcm.config.components import Components
from fedwcm.config.data_options import DataOptions
from fedwcm.config.device import choose_kernels, chosen_device, chosen_precision
from fedwcm.config.model_facts import model_facts
from fedwcm.config.models import chosen_model
from fedwcm.config.objects import CLIENT_IDS, NO_OBJECTS, Objects, with_options
from fedwcm.config.population import largest_cohort, population_of
from fedwcm.config.resolve import OBJECT, needed
from fedwcm.config.rounds import Elsewhere, make_rounds
from fedwcm.config.schema import PARTITION_DEFAULTS, Component, Config
from fedwcm.core.batch import Inputs, LazyInputs
from fedwcm.core.checks import require
from fedwcm.core.rng import Purpose, generator, model_seed
from fedwcm.core.types import Ints, Vec
from fedwcm.data import DATASETS, Dataset, load_dataset, synthetic
from fedwcm.data.fingerprint import array_digest, fingerprint
from fedwcm.data.inputs import are_small, model_inputs
from fedwcm.data.longtail import long_tail
from fedwcm.data.normalize import Normalizer, choose_normalizer
from fedwcm.data.partition import PARTITIONS, Natural, Partition, make_partition
from fedwcm.data.split import stratified_split
from fedwcm.engine.backends.plan import ExecutionPlan, choose
from fedwcm.engine.federation import Federation, InMemoryFederation
from fedwcm.engine.memory import keep_freed_memory
from fedwcm.engine.network import Network
from fedwcm.engine.rounds import Rounds
from fedwcm.engine.smallest_batch import require_trainable, smallest_batch
from fedwcm.models import has_embedding
from fedwcm.models.facts import ModelFacts

LOG = logging.getLogger("fedwcm")

NAMED_IMBALANCE = 0.1
"""Default long tail of named data sets, as in the paper."""


@dataclass(frozen=True, eq=False)
class LabelledTensors:
    """Samples to evaluate on."""

    inputs: Inputs
    labels: Tensor


@dataclass(frozen=True, eq=False)
class PartitionedData:
    """The data of a run: each client's samples, the held-out samples, and the resolved configuration."""

    config: Config
    dataset: Dataset
    train_rows: Ints
    val_rows: Ints
    parts: list[Ints]
    normalizer: Normalizer
    normalization: str
    """A one-sentence description of the normalizer."""

    @property
    def are_small(self) -> bool:
        """Whether the samples are few enough to be prepared for the model in advance."""
        return are_small(self.dataset.x_train, len(self.train_rows))

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


@dataclass(frozen=True, eq=False)
class Experiment:
    """A run that is ready to start, with its configuration resolved.

    `test` is None if there are no test data; `facts` is what one needs to use the trained model. `client_names`
    are those of the data's own clients, in the order of the federation; there are none if a partition made the
    clients. `test_clients` names who each test sample belongs to, where the data tells. `encryption` is what the
    encrypted sum of the class counts cost, if there was one.
    """

    config: Config
    rounds: Rounds
    network: Network
    x: Vec
    buffers: Vec
    train_counts: Ints
    test: LabelledTensors | None
    val: LabelledTensors | None
    choice: ExecutionPlan
    facts: ModelFacts
    client_names: tuple[str, ...] = ()
    test_clients: NDArray[np.str_] | None = None
    encryption: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        patience = self.config.run.patience
        allowed = "0 without validation data: hold some out with --val-fraction"
        require(not patience or self.val is not None, "run.patience", patience, allowed)


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


def divide(config: Config, objects: Objects = NO_OBJECTS, *, trusted: bool = True) -> PartitionedData:
    """Load the data, create the long tail, hold out samples, and divide the rest among the clients."""
    seed, options = config.run.seed, resolved_data(config.data)
    dataset = run_dataset(config, objects)
    if objects.dataset is not None:
        options = replace(options, dataset=f"{OBJECT}{dataset.name}#{fingerprint(dataset)}")
    rows = np.arange(len(dataset.y_train))
    if not isinstance(options.imbalance, str):
        rng = generator(seed, Purpose.LONG_TAIL)
        rows = long_tail(dataset.y_train, options.imbalance, rng, options.profile, options.n_max)
    val_rows = rows[:0]
    if options.val_fraction and dataset.y_val is None:
        rng = generator(seed, Purpose.VALIDATION)
        kept, held_out = stratified_split(dataset.y_train[rows], options.val_fraction, rng)
        rows, val_rows = rows[kept], rows[held_out]
    partition, component = _partition(config.partition, objects, dataset, rows)
    parts = partition(dataset.y_train[rows], generator(seed, Purpose.PARTITION))
    config = replace(config, data=options, partition=component)
    embeds = dataset.is_integer and _embeds(config, objects, dataset, trusted)
    normalizer, normalization = choose_normalizer(dataset.x_train, options.normalize, rows, embeds=embeds)
    return PartitionedData(config, dataset, rows, val_rows, parts, normalizer, normalization)


def run_dataset(config: Config, objects: Objects = NO_OBJECTS) -> Dataset:
    """Return the data set of a run before the long tail, with the test set that the run's seed selects."""
    options, source = config.data, objects.dataset
    if source is None and options.dataset.startswith(OBJECT):
        raise needed("data", options.dataset)
    if options.dataset == synthetic.NAME:
        raise ValueError("data.dataset = 'synthetic' has nothing to load: its samples are drawn as clients train")
    return load_dataset(
        options.dataset if source is None else source,
        data_dir=options.data_dir,
        label=options.label,
        client=options.client,
        split=options.split,
        features=options.features,
        drop=options.drop,
        impute=options.impute,
        encoding=options.encoding,
        image_size=options.image_size,
        client_ids=objects.client_ids,
        test_fraction=options.test_fraction,
        test_clients=options.test_clients,
        seed=config.run.seed,
    )


def build(config: Config, objects: Objects = NO_OBJECTS, *, trusted: bool = True) -> Experiment:
    """Return everything that a run of this configuration needs. Options are checked before data is loaded.

    Args:
        config: the configuration.
        objects: objects that the configuration describes but cannot rebuild.
        trusted: whether names of the form `package.module:Name` may be imported; see `fedwcm.config.resolve`.
    """
    components = Components.of(config, objects, trusted=trusted)
    return assemble(config, components, run_data(config, objects, trusted=trusted), objects, trusted=trusted)


def run_data(config: Config, objects: Objects = NO_OBJECTS, *, trusted: bool = True) -> RunData:
    """Return the samples of a run, divided among its clients."""
    device = chosen_device(config.run.device)
    if config.data.dataset == synthetic.NAME:
        return _generated(config, device)
    return _loaded(config, objects, trusted, device)


def assemble(
    config: Config, components: Components, source: RunData, objects: Objects = NO_OBJECTS, *, trusted: bool = True
) -> Experiment:
    """Return a run of this configuration on samples that are there already, divided as it says."""
    asked, device = config, chosen_device(config.run.device)
    config = replace(config, data=source.config.data, partition=source.config.partition)
    make_model = partial(
        chosen_model,
        config.model,
        objects.model,
        source.input_shape,
        len(source.classes),
        model_seed(config.run.seed),
        trusted=trusted,
    )
    module, model = make_model()
    config = _on_device(replace(components.resolved(config), model=model), str(device))
    network = _network(module, config)
    x, buffers = network.initial()
    network.point_parameters(x)  # otherwise the module would hold a second copy of the model
    federation = source.federation
    few = _few_samples(federation)
    smallest = smallest_batch(config.local.drop_last, config.local.batch_size, network, few)
    claimed = claimed_counts(config, federation)
    samples, gathered = federation.samples, gather(claimed, config.run.target_shares, config.privacy)
    mean = float(samples.mean())
    population = population_of(config, gathered.totals, gathered.deviation, len(samples), mean, smallest)
    require_trainable(federation.samples, population, network, few)
    choice = choose(config.run.backend, config.run.workers, network, largest_cohort(config, population), few)
    noisy = None if config.privacy.epsilon is None else dict(enumerate(claimed))
    trainer = components.trainer(config, choice.forward(network), population, noisy)
    train_counts: Ints = federation.counts.sum(axis=0)
    for note in filter(None, (source.normalization, choice.note, network.precision.note)):
        LOG.info(note)
    keep_freed_memory()  # not earlier, so that temporary memory of loading goes back to the system
    elsewhere = Elsewhere(
        lambda place: _network(make_model()[0], _on_device(config, place)),
        lambda place: run_data(_on_device(asked, place), objects, trusted=trusted).federation,
        asked.run.device,
    )
    return Experiment(
        config=config,
        rounds=make_rounds(config, trainer, federation, choice, elsewhere),
        network=network,
        x=x,
        buffers=buffers,
        train_counts=train_counts,
        test=source.test,
        val=source.val,
        choice=choice,
        facts=model_facts(
            source.input_shape, source.classes, source.normalizer, train_counts, config, components, source.dataset
        ),
        client_names=source.client_names,
        test_clients=None if source.dataset is None else source.dataset.test_clients,
        encryption=gathered.encryption,
    )


def _network(module: nn.Module, config: Config) -> Network:
    """Return the module on the device that the configuration names, ready to compute there."""
    device = torch.device(config.run.device)
    choose_kernels(device)
    return Network(module, device, chosen_precision(config.run.precision, device))


def _on_device(config: Config, device: str) -> Config:
    return replace(config, run=replace(config.run, device=device))


def resolved_data(options: DataOptions) -> DataOptions:
    """Return the data options, with the default long tail for named data sets."""
    if options.imbalance != "auto":
        return options
    named = options.dataset in (*DATASETS, synthetic.NAME)
    return replace(options, imbalance=NAMED_IMBALANCE if named else "none")


def _partition(chosen: Component, objects: Objects, dataset: Dataset, rows: Ints) -> tuple[Partition, Component]:
    """Return the partition and its resolved options; by default the data's own clients if any, else `equal`."""
    name = chosen.name
    if objects.client_ids is not None:
        assert dataset.client_ids is not None
        _refuse_options(chosen)
        digest = array_digest(dataset.client_ids)
        return Natural(client_ids=dataset.client_ids[rows]), Component(f"{CLIENT_IDS}#{digest}")
    if objects.partition is not None:
        return with_options(objects.partition, chosen.options, "partition"), chosen
    if name.startswith(OBJECT):
        raise needed("partition", name)
    if name == "auto":
        name = "natural" if dataset.client_ids is not None else "equal"
    if name == "natural":
        if dataset.client_ids is None:
            raise ValueError(
                f"partition.name = 'natural' needs the clients of {dataset.name}: name their column with --client"
            )
        _refuse_options(chosen)
        return Natural(client_ids=dataset.client_ids[rows]), Component(name)
    known = {field.name for field in fields(PARTITIONS[name])} if name in PARTITIONS else set()
    defaults = {key: value for key, value in PARTITION_DEFAULTS.items() if key in known}
    options = {**defaults, **chosen.options}
    return make_partition(name, **options), Component(name, options)


def _refuse_options(chosen: Component) -> None:
    for option in chosen.options:
        raise ValueError(f"partition.{option} is not an option of 'natural': the data says who the clients are")


def _embeds(config: Config, objects: Objects, dataset: Dataset, trusted: bool) -> bool:
    """Return whether the model has an embedding for integers; the model is built to find out."""
    shape, classes = dataset.input_shape, dataset.num_classes
    return has_embedding(chosen_model(config.model, objects.model, shape, classes, 0, trusted=trusted)[0])


def _loaded(config: Config, objects: Objects, trusted: bool, device: torch.device) -> RunData:
    """Return the samples of a data set that is loaded and divided."""
    data = divide(config, objects, trusted=trusted)
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


def _generated(config: Config, device: torch.device) -> RunData:
    """Return samples that are generated while clients train."""
    options = resolved_data(config.data)
    require(options.test_clients is None, "data.test_clients", options.test_clients, "none for synthetic data")
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
    held = model_inputs(inputs, data.normalizer, device, prepared=data.are_small)
    return LabelledTensors(held, torch.from_numpy(labels).to(device))


def _validation(data: PartitionedData, device: torch.device) -> LabelledTensors | None:
    """Return the data's own validation set or, if it has none, the samples held out from the training set."""
    if data.dataset.x_val is not None and data.dataset.y_val is not None:
        return _tensors(data, data.dataset.x_val, data.dataset.y_val, device)
    if not len(data.val_rows):
        return None
    rows = data.val_rows
    return _tensors(data, data.dataset.x_train[rows], data.dataset.y_train[rows], device)


def _few_samples(federation: Federation) -> Tensor:
    """Return a tiny batch, on which to try the model."""
    shard = federation.shard(0)
    return shard.store.inputs[torch.from_numpy(shard.rows[:2])]
