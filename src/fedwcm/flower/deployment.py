"""The simulator's round and runner, where the clients are real and the server has none of their data."""

import logging
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from fedwcm.core.types import Ints, Report, Vec
from fedwcm.engine.rounds import Rounds, ServerState
from fedwcm.flower.backend import FlowerBackend
from fedwcm.runs.folder import Record

LOG = logging.getLogger("flwr.fedwcm")


class RemoteFederation:
    """A federation whose data is with its clients: the server knows how many samples each has."""

    def __init__(self, samples: Ints, classes: int) -> None:
        self.samples = samples
        self.counts: Ints = np.zeros((0, classes), dtype=np.int64)

    def shard(self, client: int) -> NoReturn:
        raise LookupError(f"the data of client {client} is with the client")


@dataclass(frozen=True, eq=False)
class Deployment(Rounds):
    """The simulator's round. Clients were surveyed before, and each round tells whom it went on without."""

    backend: FlowerBackend
    survey: Report

    def start(self, x: Vec, buffers: Vec) -> ServerState:
        method, population = self.training.method, self.training.population
        return ServerState(0, x, buffers, method.init(x, population, self.survey))

    def play(self, before: ServerState) -> tuple[ServerState, dict[str, object]]:
        after, record = super().play(before)
        left_out = {str(fault.client): fault.reason for fault in self.backend.take_faults()}
        return after, {**record, "left_out": left_out}


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
