"""A run with real clients: the simulator's rounds over Flower's grid, in a run folder like any other."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedwcm import __version__
from fedwcm.config.schema import Component, Config, DataOptions
from fedwcm.config.settings import differences
from fedwcm.core.checks import require
from fedwcm.core.disclosure import as_counts
from fedwcm.core.method import ClientStatistics, Method, ServerTraining
from fedwcm.core.types import Population, State
from fedwcm.engine.backends.plan import ExecutionPlan
from fedwcm.engine.batches import require_trainable, smallest_batch
from fedwcm.engine.client import ClientTrainer
from fedwcm.engine.evaluate import LabelledTensors
from fedwcm.engine.forward import SequentialForward
from fedwcm.engine.network import Network
from fedwcm.engine.rounds import Rounds
from fedwcm.engine.server_data import ServerSamples
from fedwcm.engine.uploads import require_possible
from fedwcm.experiment.build import Experiment, model_facts
from fedwcm.experiment.components import Components
from fedwcm.experiment.evaluator import EvaluatedModel, Measure
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.lock import locked
from fedwcm.experiment.progress import Silent
from fedwcm.experiment.records import RoundRecord
from fedwcm.experiment.run import Run
from fedwcm.experiment.runner import Runner
from fedwcm.experiment.trackers.tracking import check_trackers
from fedwcm.flower.app.model import ModelFactory, Samples, network, tensors
from fedwcm.flower.app.options import AppOptions, read, with_run_config
from fedwcm.flower.info import Admission
from fedwcm.flower.server.backend import FlowerBackend, RemoteFederation
from fedwcm.flower.server.directory import ClientDirectory, NodeBinding
from fedwcm.flower.server.evaluation import ClientEvaluation, CustomEvaluation
from fedwcm.flower.server.setup import FederationSetup, count_into_setup, with_statistics
from fedwcm.reports.write import report_or_warn

LOG = logging.getLogger("flwr.fedwcm")

ServerData = Callable[..., Samples]
"""Gives inputs and labels of the server, to test or to train on; it may take the run's config as `run_config`."""

EXPOSED = (
    "privacy.mode = 'he' without flower.secure_aggregation hides little: the server sees every update, and an "
    "attack on the first ones of FedWCM found 76 % of all class counts exactly; one that chooses its models "
    "reads all (docs/privacy.md)"
)

UNBOUNDED = (
    "the length of uploads has no bound (aggregation.norm_ratio is off): one client that lies can spoil the run "
    "(docs/one-client.md)"
)

Watch = Callable[[int, State], Mapping[str, object]]
"""Gets the round and the model's state dict at every evaluation; what it returns is recorded."""


@dataclass(frozen=True, eq=False)
class Deployment:
    """A run that is ready to start.

    Args:
        grid: Flower's connection to the clients.
        options: all options of the run, as they were given.
        model: makes the model.
        origin: where the model comes from, as `package.module:name`.
        evaluate: gives the server's test data; None if it has none.
        server_data: gives samples that the server trains on, for methods with `ServerTraining`.
        initial: state dict to start from; None for the weights that the run's seed gives.
        evaluation: what the app asks of evaluations on the clients.
        watch: sees the model at every evaluation.
    """

    grid: Grid
    options: AppOptions
    model: ModelFactory
    origin: str
    evaluate: Callable[[], Samples] | None = None
    server_data: Callable[[], Samples] | None = None
    initial: State | None = None
    evaluation: CustomEvaluation = field(default_factory=CustomEvaluation)
    watch: Watch | None = None

    def run(self) -> Run | None:
        """Run to the end, from the start or from the checkpoint in its folder; None if it was finished before."""
        components, out = Components.of(self.options.config), self.options.federation.out
        config = _resolve(self.options.config, components, self.origin)
        with _for_the_owner_only():
            if not out:
                return self._run(config, components, None)
            with locked(Path(out)):
                return self._run(config, components, RunFolder(Path(out)))

    def _run(self, config: Config, components: Components, folder: RunFolder | None) -> Run | None:
        path = None if folder is None else folder.path
        check_trackers(config.run.track, path)
        if folder is not None and folder.holds_run:
            _require_same(folder, config)
            if folder.finished:
                LOG.info("%s holds a finished run: there is nothing to do", folder.path)
                return None
        federation, scale = self.options.federation, components.loss.logit_scale
        server_model = network(self.model, config, logit_scale=scale)
        if self.initial is not None:
            server_model.module.load_state_dict(self.initial)
        _require_compatible(config, components.method, server_model, federation.secure_aggregation)
        own_data = self._own_data(components.method, server_model)
        if config.privacy.mode == "he" and not federation.secure_aggregation:
            LOG.warning(EXPOSED)
        if config.aggregation.norm_ratio is None and config.aggregation.rule == "mean":
            LOG.warning(UNBOUNDED)
        if (
            folder is None and self.initial is None
        ):  # an app that gives the model to start from gets the trained one
            LOG.warning(
                "flower.out is not set: metrics, checkpoints and the trained model are not written anywhere"
            )
        test = None if self.evaluate is None else tensors(self.evaluate(), server_model.device)
        shape = None if test is None else tuple(test.inputs[:1].shape[1:])
        admission = Admission(server_model, __version__, federation.max_samples, shape)
        directory = ClientDirectory(self.grid, self.options, admission, NodeBinding(federation.bind_nodes, path))
        setup = _setup(folder, directory, self.options, components)
        population = _population(config, setup, directory, server_model)
        server_model.choose_head(population.classes)
        trainer = components.trainer(config, SequentialForward(server_model), population)
        experiment = self._experiment(config, directory, setup, trainer, test)
        experiment = replace(experiment, rounds=replace(experiment.rounds, own_data=own_data))
        finished = Runner(experiment, folder, LogProgress(), self._measure(directory, experiment)).run()
        _require_trained(finished)
        if folder is not None:
            report_or_warn(folder.path, [finished])
            LOG.info("the model, its metrics and report.html are in %s", folder.path)
        return finished

    def _own_data(self, method: Method, server_model: Network) -> ServerSamples | None:
        """Return the samples that the server trains on; None for a method whose server does not."""
        if not isinstance(method, ServerTraining):
            return None
        if self.server_data is None:
            reason = "its server trains on samples of its own"
            raise ValueError(f"method.name = {method.name!r} needs server_app(server_data=…): {reason}")
        samples = tensors(self.server_data(), server_model.device)
        return ServerSamples(server_model, samples.inputs, samples.labels)

    def _measure(self, directory: ClientDirectory, experiment: Experiment) -> Measure:
        federation, server_model, facts = self.options.federation, experiment.network, experiment.facts
        mix = (facts.assumed_shares, facts.natural_shares) if federation.own_mix else None
        on_clients = ClientEvaluation(directory, server_model, self.options, self.evaluation, mix)

        def measure(model: EvaluatedModel) -> Mapping[str, object]:
            clients = on_clients(model) if federation.fraction_evaluate else {}
            seen = self.watch(model.round, server_model.state_dict(model.x, model.buffers)) if self.watch else {}
            return {**clients, **seen}

        return measure

    def _experiment(
        self,
        config: Config,
        directory: ClientDirectory,
        setup: FederationSetup,
        trainer: ClientTrainer,
        test: LabelledTensors | None,
    ) -> Experiment:
        """Return the same object that the simulator builds for its runner, with real clients behind it."""
        assert directory.info is not None, "clients have sent their info before"
        server_model = trainer.forward.network
        x, buffers = server_model.initial()
        names = [str(c) for c in range(len(setup.totals))]
        components = Components(trainer.method, trainer.loss, trainer.sampler)
        known = setup.assumed
        assumed = components.assumed_shares_of_totals(trainer.population) if known is None else np.array(known)
        return Experiment(
            config=config,
            rounds=self._rounds(config, directory, setup, trainer),
            network=server_model,
            x=x,
            buffers=buffers,
            train_counts=setup.totals,
            test=test,
            val=None,
            execution=ExecutionPlan("flower", block=1, workers=1),
            facts=model_facts(config, components, directory.info.input_shape, names, setup.totals, assumed),
        )

    def _rounds(
        self, config: Config, directory: ClientDirectory, setup: FederationSetup, trainer: ClientTrainer
    ) -> Rounds:
        """Return the simulator's rounds, with Flower's clients as their backend."""
        statistics = {**directory.statistics, **setup.reported}
        backend = FlowerBackend(directory, trainer, setup.run_id, self.options, statistics)
        return Rounds(
            trainer=trainer,
            federation=RemoteFederation(directory.samples, len(setup.totals)),
            participation=config.participation,
            backend=backend,
            store=backend.store,
            learning_rate=config.local,
            aggregation=config.aggregation,
            server=config.server,
            statistics=setup.statistics,
            faulty=max(1, config.participation.cohort_size(len(directory.samples)) // 2),
        )


@contextmanager
def _for_the_owner_only() -> Iterator[None]:
    """Make new files and folders readable by their owner alone: they hold clients' samples and scores."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def origin_of(model: ModelFactory) -> str:
    """Return where a model function comes from, as `package.module:name`."""
    return f"{model.__module__}:{getattr(model, '__qualname__', type(model).__name__)}"


def _resolve(config: Config, components: Components, origin: str) -> Config:
    """Return the configuration with all options of its components, as a run folder keeps it."""
    return replace(
        components.resolve_options(config),
        data=DataOptions(dataset="flower", augment=config.data.augment, crop_padding=config.data.crop_padding),
        partition=Component("natural"),
        model=Component(origin),
    )


def _require_trained(run: Run) -> None:
    """Raise RuntimeError if no round had an answer that was used: the model is the one that it began with."""
    if not any(record.participants for record in run.history):
        *_, last = ["nobody was asked"], *((record.left_out or {}).values() for record in run.history)
        raise RuntimeError(f"no answer was used in any round; the last reasons: {'; '.join(sorted(set(last)))}")


def _require_same(folder: RunFolder, config: Config) -> None:
    changed = differences(folder.config(), config)
    if changed:
        raise ValueError(f"{folder.path} cannot be continued with another configuration: " + "; ".join(changed))


def _require_compatible(config: Config, method: Method, model: Network, secure: bool) -> None:
    """Raise ValueError for options that exclude each other, before any client is asked for anything."""
    require_possible(config.aggregation, method, model.initial()[0])
    participation, sampling = config.participation, config.participation.sampling
    allowed = "fixed or bernoulli with real clients, whose class counts the server does not keep"
    require(sampling in ("fixed", "bernoulli"), "participation.sampling", sampling, allowed)
    clock = participation.speeds or participation.deadline
    require(not participation.has_clock, "participation.speeds, deadline", clock, "none with real clients")
    if secure and method.reads_rows:
        raise ValueError(
            f"method.name = {config.method.name!r} is not possible with flower.secure_aggregation: "
            "it reads every single upload (reads_rows)"
        )
    if secure and (option := config.aggregation.needs_uploads):
        raise ValueError(f"{option} is not possible with flower.secure_aggregation: it needs every single upload")


def _setup(
    folder: RunFolder | None, directory: ClientDirectory, options: AppOptions, components: Components
) -> FederationSetup:
    """Return the setup in the run's folder; what is not there yet is collected and written there."""
    began = folder is not None and folder.holds_run
    setup, method = None, components.method
    if folder is not None and (began or folder.federation_file.exists()):
        setup = FederationSetup.read(folder.path)
        setup.require_counted_with(options.config)
        setup = setup if began else replace(setup, assumed=None)  # until round 1 the loss may still change
        directory.continue_with(setup.clients, setup.first_samples)
    directory.wait()
    options.require_reachable(len(directory.samples))
    if setup is None:
        setup = count_into_setup(directory, options)
        if directory.counts:
            counts = as_counts(np.stack([*directory.counts.values()]))
            shares = components.assumed_shares(counts, setup.population(options.config))
            setup = replace(setup, assumed=None if shares is None else shares.tolist())
        setup.write(folder)
    setup.require_enough(options.federation.min_clients)
    if isinstance(method, ClientStatistics) and not began:  # until round 1 the method may still change
        setup = with_statistics(setup, directory, options, method)
        setup.write(folder)
    return setup


def _population(config: Config, setup: FederationSetup, directory: ClientDirectory, model: Network) -> Population:
    """Return the public facts about the federation, with the smallest batch that the model can train on."""
    assert directory.info is not None, "clients have sent their info before"
    dtype = getattr(torch, directory.info.input_dtype)
    sample = torch.zeros(1, *directory.info.input_shape, dtype=dtype, device=model.device)
    smallest = smallest_batch(config.local.drop_last, config.local.batch_size, model, sample)
    population = replace(setup.population(config), smallest_batch=smallest)
    try:
        require_trainable(directory.samples, population, model, sample)
    except ValueError as error:  # they will fail and be left out: no client ends the run of the others
        LOG.warning("%s", error)
    return population


def server_app(
    *, model: ModelFactory, evaluate: ServerData | None = None, server_data: ServerData | None = None
) -> ServerApp:
    """Return a Flower app that trains this model over its clients, by whichever method the run asks for.

    Args:
        model: makes the model, as for `client_app`.
        evaluate: gives `(inputs, labels)` to test the model on; None if the server has no data.
        server_data: gives those that the server trains on, for methods that do (`fedic`).

    All get Flower's run-config as well, if they take a parameter `run_config`.
    """

    def main(grid: Grid, context: Context) -> None:
        serve(grid, context.run_config, model, evaluate, server_data)

    app = ServerApp()
    app.main()(main)
    return app


def serve(
    grid: Grid,
    run_config: Mapping[str, object],
    model: ModelFactory,
    evaluate: ServerData | None = None,
    server_data: ServerData | None = None,
) -> Run | None:
    """Run to the end, from the start or from the checkpoint in its folder; None if it was finished before."""
    tested, own = (given and with_run_config(given, run_config) for given in (evaluate, server_data))
    made_by = with_run_config(model, run_config)
    return Deployment(grid, read(run_config), made_by, origin_of(model), tested, own).run()


class LogProgress(Silent):
    """Logs one line per round."""

    def start(self, title: str, rounds: int, done: int) -> None:
        self._rounds = rounds
        LOG.info("%s: %s", title, f"resuming after round {done}" if done else f"{rounds} rounds")

    def round(self, number: int, record: RoundRecord) -> None:
        clients: Any = record.extra.get("clients_accuracy")
        numbers = {
            "accuracy": record.test_accuracy,
            "accuracy on clients": clients,
            "training loss": record.train_loss,
        }
        shown = [f"{name} {value:.4f}" for name, value in numbers.items() if value is not None]
        LOG.info("round %d of %d: %s", number, self._rounds, ", ".join([f"{record.participants} clients", *shown]))
