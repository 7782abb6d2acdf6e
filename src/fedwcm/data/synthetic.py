"""Clients that are drawn when they are asked for: federations of any size in the memory of a few.

Each class is a Gaussian cloud. A client's class shares are drawn from a Dirichlet distribution around the global,
possibly long-tailed, ones; its samples come from its own address, so that a million clients differ, none is ever
kept, and whoever asks for a client sees the same samples.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from fedwcm.core.batch import SampleStore, Shard
from fedwcm.core.checks import require, require_count
from fedwcm.core.rng import Purpose, generator
from fedwcm.core.types import Floats, Ints

NAME = "synthetic"
DESCRIPTION = "clients of 40 samples drawn on demand, however many; 64 features, 10 classes"
FEATURES, CLASSES, SAMPLES = 64, 10, 40
TEST_SAMPLES = 2000
SPREAD = 0.3
"""Standard deviation of the classes' centres, in that of the samples around them: far from separable."""

CHUNK = 50_000
"""Clients whose class counts are drawn at a time: bounds memory."""


class SyntheticFederation:
    """A federation of clients that exist only while they train."""

    def __init__(self, clients: int, beta: float, imbalance: float, seed: int, device: torch.device) -> None:
        require_count("partition.clients", clients)
        require(isinstance(beta, int | float) and beta > 0, "partition.beta", beta, "a positive number")
        self._seed, self._device = seed, device
        self.samples: Ints = np.full(clients, SAMPLES, dtype=np.int64)
        self.counts: Ints = _draw_counts(clients, beta, imbalance, seed)
        self._centres = SPREAD * generator(seed, Purpose.SYNTHETIC_CLASSES).standard_normal((CLASSES, FEATURES))

    def shard(self, client: int) -> Shard:
        labels = np.repeat(np.arange(CLASSES), self.counts[client])
        rng = generator(self._seed, Purpose.SYNTHETIC_CLIENT, client=client)
        store = SampleStore(
            torch.from_numpy(self._draw_around(labels, rng)).to(self._device),
            torch.from_numpy(labels).to(self._device),
            torch.arange(client * SAMPLES, (client + 1) * SAMPLES, device=self._device),
            labels,
        )
        return Shard(store, np.arange(SAMPLES))

    def held_out(self) -> tuple[NDArray[np.float32], Ints]:
        """Draw samples to test on, equally many of each class."""
        labels = np.arange(TEST_SAMPLES) % CLASSES
        return self._draw_around(labels, generator(self._seed, Purpose.VALIDATION)), labels

    def _draw_around(self, labels: Ints, rng: np.random.Generator) -> NDArray[np.float32]:
        samples = rng.standard_normal((len(labels), FEATURES), dtype=np.float32)
        samples += self._centres[labels]
        return samples


def _draw_counts(clients: int, beta: float, imbalance: float, seed: int) -> Ints:
    """Return how many samples of each class each client has, `(clients, classes)`."""
    rng = generator(seed, Purpose.PARTITION)
    tail: Floats = imbalance ** (np.arange(CLASSES) / (CLASSES - 1))
    counts = np.empty((clients, CLASSES), dtype=np.int64)
    for start in range(0, clients, CHUNK):
        rows = counts[start : start + CHUNK]
        rows[:] = rng.multinomial(SAMPLES, rng.dirichlet(beta * CLASSES * tail / tail.sum(), len(rows)))
    return counts
