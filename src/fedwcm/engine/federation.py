"""The clients and their data, independent of how the data are stored."""

from typing import Protocol

import numpy as np
import torch

from fedwcm.core.batch import Inputs, SampleStore, Shard
from fedwcm.core.types import Ints


class Federation(Protocol):
    """Clients numbered from 0, each with a shard of data. Shards may be generated on demand."""

    samples: Ints
    """Samples of each client, `(N,)`."""
    counts: Ints
    """Samples of each client and class, `(N, C)`."""

    def shard(self, client: int) -> Shard:
        """Return the data of one client."""
        ...


class InMemoryFederation:
    """A federation over one data set in memory, divided among clients by row."""

    def __init__(
        self, inputs: Inputs, labels: Ints, parts: list[Ints], classes: int, sample_ids: Ints | None = None
    ) -> None:
        ids = np.arange(len(labels)) if sample_ids is None else sample_ids
        device = inputs.device
        self._store = SampleStore(
            inputs, torch.from_numpy(labels).to(device), torch.from_numpy(ids).to(device), labels
        )
        self._parts = parts
        self.samples = np.array([len(part) for part in parts], dtype=np.int64)
        owner = np.repeat(np.arange(len(parts)), self.samples)
        cells = owner * classes + labels[np.concatenate(parts)]
        self.counts = np.bincount(cells, minlength=len(parts) * classes).reshape(-1, classes)

    def shard(self, client: int) -> Shard:
        return Shard(self._store, self._parts[client])
