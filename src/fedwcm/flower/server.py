"""The server app: the round of the simulator, played with real clients, in a run folder like any other."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedwcm.config import Component, Config, Data, differences
from fedwcm.core.forward import OneByOne
from fedwcm.core.local import LocalTraining
from fedwcm.experiment import Experiment, model_facts
from fedwcm.flower.backend import RealClients
from fedwcm.flower.census import Census, take
from fedwcm.flower.deployment import Deployment, Elsewhere, Logged
from fedwcm.flower.roster import Roster
from fedwcm.flower.run_config import Options, read
from fedwcm.flower.samples import Samples, tensors
from fedwcm.flower.training import ModelFactory, network
from fedwcm.parts import Parts
from fedwcm.sim.choice import Choice
from fedwcm.sim.folder import RunFolder
from fedwcm.sim.runner import Finished, Runner
from fedwcm.trackers.tracking import check_trackers

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
) -> Finished | None:
    """Play a run to its end, from its start or from where its folder has it; None if it was finished before."""
    options = read(run_config)
    parts = Parts.of(options.config)
    options = replace(options, config=_resolved(options.config, parts, model))
    folder = RunFolder(Path(options.federation.out)) if options.federation.out else None
    check_trackers(options.config.run.track, None if folder is None else folder.path)
    if folder is not None and folder.holds_run:
        _require_same(folder, options.config)
        if folder.finished:
            LOG.info("%s holds a finished run: there is nothing to do", folder.path)
            return None
    made = network(model, options.config)
    roster = Roster(grid, options.federation)
    roster.wait()
    census = _census(folder, roster, options, parts)
    training = parts.training(options.config, OneByOne(made), census.population(options.config))
    return Runner(_deployed(options, roster, census, training, evaluate), folder, Logged()).run()


def _resolved(config: Config, parts: Parts, model: ModelFactory) -> Config:
    """The configuration with every option of its parts, as a run folder keeps it."""
    origin = f"{model.__module__}:{getattr(model, '__qualname__', type(model).__name__)}"
    return replace(
        parts.resolved(config),
        data=Data(dataset="flower", augment=config.data.augment),
        partition=Component("natural"),
        model=Component(origin),
    )


def _require_same(folder: RunFolder, config: Config) -> None:
    changed = differences(folder.config(), config)
    if changed:
        raise ValueError(f"{folder.path} cannot be continued with another configuration: " + "; ".join(changed))


def _census(folder: RunFolder | None, roster: Roster, options: Options, parts: Parts) -> Census:
    """The census of the run in the folder; a new one, written there, for a new run."""
    if folder is not None and folder.holds_run:
        return Census.read(folder.path)
    census = take(roster, options, parts.method)
    if folder is not None:
        census.write(folder.path)
    return census


def _deployed(
    options: Options, roster: Roster, census: Census, training: LocalTraining, evaluate: TestData | None
) -> Experiment:
    assert roster.introduction is not None, "clients were met before"
    config, made = options.config, training.forward.network
    backend = RealClients(roster, training, census.series, options.federation.min_clients)
    classes = len(census.totals)
    deployment = Deployment(
        training=training,
        federation=Elsewhere(roster.samples, classes),
        participation=config.participation,
        backend=backend,
        store=backend.store,
        lr=config.local.lr,
        lr_decay=config.local.lr_decay,
        survey=census.survey,
    )
    x, buffers = made.initial()
    return Experiment(
        config=config,
        simulation=deployment,
        network=made,
        x=x,
        buffers=buffers,
        train_counts=census.totals,
        test=None if evaluate is None else tensors(evaluate(), made.device),
        val=None,
        choice=Choice("flower", block=1, workers=1),
        facts=model_facts(roster.introduction.input_shape, [str(c) for c in range(classes)], normalizer=None),
    )
