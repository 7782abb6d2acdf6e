"""The simulator's round and runner, where the clients are real and the server has none of their data."""

import logging
from dataclasses import dataclass
from typing import NoReturn, cast

import numpy as np

from fedwcm.config import Config
from fedwcm.core.network import Network
from fedwcm.core.types import Ints, Report, Vec
from fedwcm.data.normalize import Normalizer
from fedwcm.experiment import Experiment, LabelledTensors
from fedwcm.flower.backend import RealClients
from fedwcm.sim.choice import Choice
from fedwcm.sim.folder import Record, RunFolder
from fedwcm.sim.runner import Runner
from fedwcm.sim.simulation import ServerState, Simulation

LOG = logging.getLogger("flwr.fedwcm")


class Elsewhere:
    """A federation whose data is with its clients: the server knows how many samples each has."""

    def __init__(self, samples: Ints, classes: int) -> None:
        self.samples = samples
        self.counts: Ints = np.zeros((0, classes), dtype=np.int64)

    def shard(self, client: int) -> NoReturn:
        raise LookupError(f"the data of client {client} is with the client")


@dataclass(frozen=True, eq=False)
class Deployment(Simulation):
    """The simulator's round. Clients were surveyed before, and each round tells whom it went on without."""

    backend: RealClients
    survey: Report

    def start(self, x: Vec, buffers: Vec) -> ServerState:
        method, population = self.training.method, self.training.population
        return ServerState(0, x, buffers, method.init(x, population, self.survey))

    def play(self, before: ServerState) -> tuple[ServerState, dict[str, object]]:
        after, record = super().play(before)
        left_out = {str(fault.client): fault.reason for fault in self.backend.take_faults()}
        return after, {**record, "left_out": left_out}


@dataclass(frozen=True)
class DataForm:
    """All that the server needs to know of data that it does not have."""

    input_shape: tuple[int, ...]
    classes: tuple[str, ...]

    @property
    def num_classes(self) -> int:
        return len(self.classes)


@dataclass(frozen=True, eq=False)
class Deployed:
    """An experiment with real clients: what a runner reads of one, and perhaps nothing to test on."""

    config: Config
    dataset: DataForm
    simulation: Deployment
    network: Network
    x: Vec
    buffers: Vec
    train_counts: Ints
    test: LabelledTensors | None
    choice: Choice
    normalizer: Normalizer
    val: None = None


class ServerRunner(Runner):
    """A runner that may have nothing to test on, and says in Flower's log how it goes."""

    def __init__(self, deployed: Deployed, folder: RunFolder | None) -> None:
        super().__init__(cast(Experiment, deployed), folder, Logged())
        self._tests = deployed.test is not None

    def _evaluate(self, state: ServerState) -> Record:
        return super()._evaluate(state) if self._tests else {}

    def _write_summary(self, diverged: str | None = None) -> Record:
        if self._tests:
            return super()._write_summary(diverged)
        config, network = self.experiment.config, self.experiment.network
        summary: Record = {
            "method": config.method.name,
            "dataset": config.data.dataset,
            "seed": config.run.seed,
            "rounds": self.history[-1]["round"] if self.history else 0,
            "diverged": diverged,
            "backend": self.experiment.choice.name,
            "parameters": network.size,
            "train_counts": self.experiment.train_counts.tolist(),
        }
        if self.folder is not None:
            self.folder.write_summary(summary)
        return summary


class Logged:
    """Progress in Flower's log: a line a round."""

    def start(self, title: str, rounds: int, done: int) -> None:
        self._rounds = rounds
        LOG.info("%s: %s", title, f"going on after round {done}" if done else f"{rounds} rounds")

    def round(self, number: int, record: Record) -> None:
        said = {"test_accuracy": "accuracy", "train_loss": "training loss"}
        numbers = [f"{name} {record[key]:.4f}" for key, name in said.items() if isinstance(record.get(key), float)]
        told = ", ".join([f"{record['participants']} clients", *numbers])
        LOG.info("round %d of %d: %s", number, self._rounds, told)

    def close(self) -> None:
        pass
