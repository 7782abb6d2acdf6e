"""What the server of a real federation has in the place of the simulator's data and progress bar."""

import logging
from typing import NoReturn

import numpy as np

from fedwcm.core.types import Ints
from fedwcm.runs.folder import Record

LOG = logging.getLogger("flwr.fedwcm")


class RemoteFederation:
    """A federation whose data is with its clients: the server knows how many samples each has."""

    def __init__(self, samples: Ints, classes: int) -> None:
        self.samples = samples
        self.counts: Ints = np.zeros((0, classes), dtype=np.int64)

    def shard(self, client: int) -> NoReturn:
        raise LookupError(f"the data of client {client} is with the client")


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
