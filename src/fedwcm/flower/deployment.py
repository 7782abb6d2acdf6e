"""The simulator's round and runner, where the clients are real and the server has none of their data."""

from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from fedwcm.core.types import Ints, Report, Vec
from fedwcm.engine.rounds import Rounds, ServerState
from fedwcm.flower.backend import FlowerBackend


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
