"""Build everything that a run needs from its configuration: data, clients, model, method, engine."""

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedwcm.config.schema import PARTITION_DEFAULTS, Config, DataOptions
from fedwcm.core.batch import Federation, InMemoryFederation, LazyInputs
from fedwcm.core.checks import require
from fedwcm.core.disclosure import as_counts
from fedwcm.core.loss import LogitScale
from fedwcm.core.method import ClientChoice, ServerTraining
from fedwcm.core.rng import model_seed
from fedwcm.core.types import Floats, Ints, Population, Vec
from fedwcm.data import Dataset, synthetic
from fedwcm.data.fingerprint import fingerprint
from fedwcm.data.inputs import Normalizer, model_inputs
from fedwcm.engine.backends.plan import ExecutionPlan, choose
from fedwcm.engine.batches import require_trainable, smallest_batch
from fedwcm.engine.client import ClientTrainer
from fedwcm.engine.evaluate import LabelledTensors
from fedwcm.engine.memory import keep_freed_memory
from fedwcm.engine.network import Network
from fedwcm.engine.rounds import Rounds
from fedwcm.experiment.class_distribution import (
    ClassDistribution,
    gather_distribution,
    population_of,
    reported_counts,
)
from fedwcm.experiment.components import Components, reject_unused_options, require_default
from fedwcm.experiment.environment import digest_sources
from fedwcm.experiment.models import chosen_model
from fedwcm.experiment.partitioning import PartitionedData, partition_data, resolve_data
from fedwcm.experiment.rounds import (
    WorkerSources,
    choose_kernels,
    chosen_device,
    chosen_precision,
    find_participation,
    make_rounds,
)
from fedwcm.models.facts import ModelFacts
from fedwcm.models.predictor import predictor

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
    server: LabelledTensors | None = None
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
        _rows(data, data.server_rows, device),
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
    options = resolve_data(config.data)
    for name in (option.name for option in fields(DataOptions)):
        if name not in GENERATED:
            require_default("data", options, name, "for synthetic data")
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
    return _rows(data, data.val_rows, device)


def _rows(data: PartitionedData, rows: Ints, device: torch.device) -> LabelledTensors | None:
    """Return these rows of the training set; None if there are none."""
    if not len(rows):
        return None
    return _tensors(data, data.dataset.x_train[rows], data.dataset.y_train[rows], device)


LOG = logging.getLogger("fedwcm")


@dataclass(frozen=True, eq=False)
class Experiment:
    """A run that is ready to start, with its configuration resolved.

    `test` is None if there are no test data; `facts` is what one needs to use the trained model. `client_names`
    are those of the data's own clients, in the order of the federation; there are none if a partition made the
    clients. `test_clients` names who each test sample belongs to, where the data tells. `encryption` is what the
    encrypted sum of the class counts cost, if there was one. `data_digest` is that of the data's source, empty
    for data that cannot change. `sources` are digests of the code that is not the package's.
    """

    config: Config
    rounds: Rounds
    network: Network
    x: Vec
    buffers: Vec
    train_counts: Ints
    test: LabelledTensors | None
    val: LabelledTensors | None
    execution: ExecutionPlan
    facts: ModelFacts
    client_names: tuple[str, ...] = ()
    test_clients: NDArray[np.str_] | None = None
    encryption: Mapping[str, float] | None = None
    data_digest: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.val is None:
            because = "without validation data: hold some out with --val-fraction"
            require_default("run", self.config.run, "patience", because)

    @property
    def predictor(self) -> nn.Module:
        """The module as it stands, with logits on the scale of the loss."""
        return predictor(self.network.module, self.facts)


def build(config: Config, data: RunData | None = None) -> Experiment:
    """Return everything that a run of this configuration needs.

    Options are checked before data is loaded, unless they are there already.
    """
    components = Components.of(config)
    reject_unused_options(config, components)
    find_participation(config.participation.sampling)
    return assemble(config, components, data or run_data(config))


def assemble(config: Config, components: Components, source: RunData) -> Experiment:
    """Return a run of this configuration on samples that are there already, divided as it says."""
    requested, device = config, chosen_device(config.run.device)
    config = replace(config, data=source.config.data, partition=source.config.partition)
    shape, classes, seed = source.input_shape, len(source.classes), model_seed(config.run.seed)
    make_model = partial(chosen_model, config.model, shape, classes, seed)
    module, model = make_model()
    config = _on_device(replace(components.resolve_options(config), model=model), str(device))
    network = _network(module, config, classes, scale := components.loss.logit_scale)
    x, buffers = network.initial()
    network.point_parameters(x)  # otherwise the module would hold a second copy of the model
    federation = source.federation
    listed = _with_listed_target(config, source.classes)
    trainer, execution, gathered = _trainer(listed, components, network, federation)
    known = gathered.totals, gathered.assumed
    facts = model_facts(listed, components, shape, source.classes, *known, source.normalizer, source.dataset)
    for note in filter(None, (source.normalization, execution.note, network.precision.note)):
        LOG.info(note)
    keep_freed_memory()  # not earlier, so that temporary memory of loading goes back to the system
    workers = WorkerSources(
        lambda place: _network(make_model()[0], _on_device(config, place), classes, scale),
        lambda place: run_data(_on_device(requested, place)).federation,
        requested.run.device,
    )
    return Experiment(
        config=config,
        rounds=make_rounds(config, trainer, federation, execution, workers, source.server),
        network=network,
        x=x,
        buffers=buffers,
        train_counts=federation.counts.sum(axis=0),
        test=source.test,
        val=source.val,
        execution=execution,
        facts=facts,
        client_names=source.client_names,
        test_clients=None if source.dataset is None else source.dataset.test_clients,
        encryption=gathered.encryption,
        data_digest="" if source.dataset is None else source.dataset.digest,
        sources=digest_sources(_code(requested, components, module)),
    )


def model_facts(
    config: Config,
    components: Components,
    input_shape: tuple[int, ...],
    classes: Sequence[str],
    class_counts: Ints,
    assumed: Floats | None,
    normalizer: Normalizer | None = None,
    dataset: Dataset | None = None,
) -> ModelFacts:
    """Return what is needed to use a trained model, on data that the loss accepts.

    Without a normalizer, inputs are unchanged.
    """
    mean, std = ([0.0], [1.0]) if normalizer is None else (normalizer.mean.tolist(), normalizer.std.tolist())
    digest = None if dataset is None else fingerprint(dataset)
    if digest is not None:
        components.loss.check_data(digest)
    return ModelFacts(
        input_shape=tuple(input_shape),
        classes=tuple(classes),
        mean=tuple(mean),
        std=tuple(std),
        keeps_integers=normalizer is not None and normalizer.keeps_integers,
        schema=None if dataset is None else dataset.schema.to_json(),
        fingerprint=digest,
        class_counts=tuple(class_counts.tolist()),
        target=None if config.run.target_shares is None else tuple(config.run.target_shares.tolist()),
        assumed=None if assumed is None else tuple(assumed.tolist()),
        balanced_by=components.balanced_by,
        logit_factor=components.loss.logit_scale.factor,
        normalizes_logits=components.loss.logit_scale.normalize,
    )


def _with_listed_target(config: Config, classes: Sequence[str]) -> Config:
    """Return the configuration with its target as a list; warn of a list whose order cannot be seen."""
    target = config.run.target
    if isinstance(target, tuple) and list(classes) != [str(number) for number in range(len(classes))]:
        text = ",".join(f"{name}={share:g}" for name, share in zip(classes, target, strict=False))
        warnings.warn(f"run.target, a list, stands for {text}: give it by name", stacklevel=3)
    return replace(config, run=config.run.with_target_of(classes))


def _trainer(
    config: Config, components: Components, network: Network, federation: Federation
) -> tuple[ClientTrainer, ExecutionPlan, ClassDistribution]:
    """Gather the classes of all clients; return their trainer, its backend, and what was gathered."""
    _refuse_hidden_counts(config)
    allowed = f"above 0 with the method {components.method.name}, whose server trains on samples of its own"
    share, trains = config.data.server_fraction, isinstance(components.method, ServerTraining)
    require(share > 0 or not trains, "data.server_fraction", share, allowed)
    if isinstance(components.method, ClientChoice):
        because = f"with the method {components.method.name}, which chooses the clients itself"
        require_default("participation", config.participation, "sampling", because)
    few, samples = _few_samples(federation), federation.samples
    smallest = smallest_batch(config.local.drop_last, config.local.batch_size, network, few)
    reported = reported_counts(config, federation)
    gathered = gather_distribution(reported, config.run.target_shares, config.privacy)
    mean = float(samples.mean())
    population = population_of(config, gathered.totals, gathered.deviation, len(samples), mean, smallest)
    require_trainable(samples, population, network, few)
    cohort = config.participation.cohort_size(len(samples))
    execution = choose(config.run.backend, config.run.workers, network, cohort, few)
    noisy = None if config.privacy.epsilon is None else dict(enumerate(as_counts(reported)))
    gathered = replace(gathered, assumed=_assumed_shares(components, config, reported, population))
    return components.trainer(config, execution.forward(network), population, noisy), execution, gathered


def _refuse_hidden_counts(config: Config) -> None:
    """Refuse to choose clients by counts that encryption hides."""
    hidden = config.participation.sampling == "balanced" and config.privacy.mode != "none"
    allowed = "fixed or bernoulli with privacy.mode = 'he', which shows the server no client's class counts"
    require(not hidden, "participation.sampling", config.participation.sampling, allowed)


def _assumed_shares(
    components: Components, config: Config, reported: Ints, population: Population
) -> Floats | None:
    """Return the class distribution that the model will presuppose, by what the server may know."""
    if config.privacy.mode == "none":
        return components.assumed_shares(as_counts(reported), population)
    return components.assumed_shares_of_totals(population)


def _code(config: Config, components: Components, module: nn.Module) -> list[object]:
    """Return what the run's results depend on that may be the user's own code."""
    chosen = (config.model, config.partition)
    named = [resolve_name(part.name) for part in chosen if part.value is None and ":" in part.name]
    objects = [part.value for part in chosen]
    return [components.method, components.loss, components.sampler, *objects, *named, *module.modules()]


def _network(module: nn.Module, config: Config, classes: int, scale: LogitScale) -> Network:
    """Return the module on the device that the configuration names, ready to compute there."""
    device = torch.device(config.run.device)
    choose_kernels(device)
    return Network(module, device, chosen_precision(config.run.precision, device), classes, scale)


def _on_device(config: Config, device: str) -> Config:
    return replace(config, run=replace(config.run, device=device))


def _few_samples(federation: Federation) -> Tensor:
    """Return a tiny batch, on which to try the model."""
    shard = federation.shard(0)
    return shard.store.inputs[torch.from_numpy(shard.rows[:2])]
