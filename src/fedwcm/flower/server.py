"""The server app: the simulator's rounds with real clients, in a run folder like any other."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedwcm import __version__
from fedwcm.config.build import Experiment
from fedwcm.config.components import Components
from fedwcm.config.model_facts import model_facts
from fedwcm.config.schema import Component, Config, DataOptions, differences
from fedwcm.core.types import Clients, Ints, Population
from fedwcm.engine.backends.plan import ExecutionPlan
from fedwcm.engine.client import ClientTrainer
from fedwcm.engine.forward import SequentialForward
from fedwcm.engine.network import Network
from fedwcm.engine.rounds import Rounds
from fedwcm.engine.smallest_batch import require_trainable, smallest_batch
from fedwcm.engine.uploads import require_possible
from fedwcm.flower.backend import FlowerBackend
from fedwcm.flower.client_directory import ClientDirectory
from fedwcm.flower.client_info import Admission
from fedwcm.flower.federation_setup import FederationSetup, collect_setup
from fedwcm.flower.model import ModelFactory, network
from fedwcm.flower.node_pairs import NodePairs
from fedwcm.flower.progress import LogProgress
from fedwcm.flower.remote_federation import RemoteFederation
from fedwcm.flower.run_config import AppOptions, read
from fedwcm.flower.samples import Samples, tensors
from fedwcm.runs.folder import RunFolder
from fedwcm.runs.lock import locked
from fedwcm.runs.runner import Runner, RunResult
from fedwcm.runs.trackers.tracking import check_trackers

LOG = logging.getLogger("flwr.fedwcm")

TestData = Callable[[], Samples]
"""Gives inputs and labels to test the model on."""


def server_app(*, model: ModelFactory, evaluate: TestData | None = None) -> ServerApp:
    """A Flower app that trains this model over its clients, by whichever method the run asks for.

    Args:
        model: makes the model, as for `client_app`.
        evaluate: gives `(inputs, labels)` to test the model on; None if the server has no data.
    """

    def main(grid: Grid, context: Context) -> None:
        serve(grid, context.run_config, model, evaluate)

    app = ServerApp()
    app.main()(main)
    return app


def serve(
    grid: Grid, run_config: Mapping[str, object], model: ModelFactory, evaluate: TestData | None = None
) -> RunResult | None:
    """Run to the end, from the start or from the checkpoint in its folder; None if it was finished before."""
    options = read(run_config)
    components = Components.of(options.config)
    options = replace(options, config=_resolved(options.config, components, model))
    if not options.federation.out:
        return _serve(grid, options, components, model, evaluate, None)
    with locked(Path(options.federation.out)):
        return _serve(grid, options, components, model, evaluate, RunFolder(Path(options.federation.out)))


def _serve(
    grid: Grid,
    options: AppOptions,
    components: Components,
    model: ModelFactory,
    evaluate: TestData | None,
    folder: RunFolder | None,
) -> RunResult | None:
    check_trackers(options.config.run.track, None if folder is None else folder.path)
    if folder is not None and folder.holds_run:
        _require_same(folder, options.config)
        if folder.finished:
            LOG.info("%s holds a finished run: there is nothing to do", folder.path)
            return None
    made = network(model, options.config)
    path = None if folder is None else folder.path
    federation = options.federation
    admission = Admission(made, __version__, federation.max_samples)
    directory = ClientDirectory(grid, federation, admission, NodePairs(federation.bind_nodes, path))
    setup = _setup(folder, directory, options, components)
    population = _population(options.config, setup, directory, made)
    trainer = components.trainer(options.config, SequentialForward(made), population)
    return Runner(_deployed(options, directory, setup, trainer, evaluate), folder, LogProgress()).run()


def _population(config: Config, setup: FederationSetup, directory: ClientDirectory, made: Network) -> Population:
    """The public facts about the federation, with the smallest batch that the model can train on."""
    assert directory.info is not None, "clients have sent their info before"
    dtype = getattr(torch, directory.info.input_dtype)
    sample = torch.zeros(1, *directory.info.input_shape, dtype=dtype, device=made.device)
    smallest = smallest_batch(config.local.drop_last, config.local.batch_size, made, sample)
    population = replace(setup.population(config), smallest_batch=smallest)
    require_trainable(directory.samples, population, made, sample)
    return population


def _resolved(config: Config, components: Components, model: ModelFactory) -> Config:
    """The configuration with all options of its components, as a run folder keeps it."""
    origin = f"{model.__module__}:{getattr(model, '__qualname__', type(model).__name__)}"
    return replace(
        components.resolved(config),
        data=DataOptions(dataset="flower", augment=config.data.augment),
        partition=Component("natural"),
        model=Component(origin),
    )


def _require_same(folder: RunFolder, config: Config) -> None:
    changed = differences(folder.config(), config)
    if changed:
        raise ValueError(f"{folder.path} cannot be continued with another configuration: " + "; ".join(changed))


def _setup(
    folder: RunFolder | None, directory: ClientDirectory, options: AppOptions, components: Components
) -> FederationSetup:
    """The setup of the run in the folder; a new run collects it and writes it there."""
    if folder is not None and folder.holds_run:
        setup = FederationSetup.read(folder.path)
        directory.first_samples |= setup.first_samples
        directory.wait()
        return setup
    directory.wait()
    setup = collect_setup(directory, options, components.method)
    if folder is not None:
        setup.write(folder.path)
    return setup


def _keeps_client_state(trainer: ClientTrainer, made: Network) -> bool:
    nobody: Ints = np.zeros(1, dtype=np.int64)
    clients = Clients(nobody, nobody + 1, np.zeros((1, trainer.population.classes), dtype=np.int64), nobody + 1)
    return bool(trainer.method.init_client(made.initial()[0], clients))


def _deployed(
    options: AppOptions,
    directory: ClientDirectory,
    setup: FederationSetup,
    trainer: ClientTrainer,
    evaluate: TestData | None,
) -> Experiment:
    assert directory.info is not None, "clients have sent their info before"
    config, made = options.config, trainer.forward.network
    folder = Path(options.federation.out) if options.federation.out else None
    backend = FlowerBackend(directory, trainer, setup.series, options.federation.min_clients, folder)
    require_possible(config.aggregation, trainer.method, _keeps_client_state(trainer, made))
    classes = len(setup.totals)
    rounds = Rounds(
        trainer=trainer,
        federation=RemoteFederation(directory.samples, classes),
        participation=config.participation,
        backend=backend,
        store=backend.store,
        learning_rate=config.local,
        aggregation=config.aggregation,
        server=config.server,
        statistics=setup.statistics,
    )
    x, buffers = made.initial()
    return Experiment(
        config=config,
        rounds=rounds,
        network=made,
        x=x,
        buffers=buffers,
        train_counts=setup.totals,
        test=None if evaluate is None else tensors(evaluate(), made.device),
        val=None,
        choice=ExecutionPlan("flower", block=1, workers=1),
        facts=model_facts(
            directory.info.input_shape,
            [str(c) for c in range(classes)],
            None,
            setup.totals,
            config,
            Components(trainer.method, trainer.loss, trainer.sampler),
        ),
    )
