"""Optional hooks that only a few methods need: list the mix-in before `Method` and define its hooks.

| mix-in | what it adds | methods |
|---|---|---|
| `ClientStatistics` | numbers that every client computes once, before round 1 | FedWCM and all `+wcm` |
| `StartingModel` | a change to the model before round 1 | FedETF |
| `TwoPhase` | a first phase of the round, over all local data at `x` | Mime, MimeLite, CReFF, CLIP2FL |
| `LocalPass` | a pass over all local data at `x` before the first step | q-FFL |
| `LocalRates` | a learning rate per client | FedWCM-X |
| `RoundMetrics` | the method's own entries in a round's metrics | FedCM's family, Fed-GraB |
| `Momentum` | the gain of a momentum that may grow, checked once | FedCM's family |
| `SharpnessAware` (`methods/sam.py`) | gradients at the ascended point | FedSAM, MoFedSAM, FedGamma, FedSpeed |
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from fedwcm.core.layout import Layout
from fedwcm.core.local_data import LocalData
from fedwcm.core.types import Cohort, Context, Floats, Ints, Population, Report, State, Uploads, Vec


class ClientStatistics(ABC):
    """Statistics that every client computes from its own class counts.

    It reports them before round 1 and, in `cohort.report`, with every answer; how exactly, the run decides.
    """

    @abstractmethod
    def client_statistics(self, counts: Ints, population: Population) -> Report:
        """Return the statistics of clients with these class counts `(K, C)`; runs on the clients."""

    def statistics_range(self, population: Population) -> Mapping[str, tuple[float, float]]:
        """Return the least and greatest value of each statistic: a server of real clients believes no other.

        By default those of clients with a single class, between which every mean over a client's samples lies.
        """
        extremes = self.client_statistics(np.eye(population.classes, dtype=np.int64), population)
        return {key: (float(values.min()), float(values.max())) for key, values in extremes.items()}

    @abstractmethod
    def with_statistics(self, s: State, statistics: Report) -> State:
        """Return the server's initial state, given the reported statistics, one entry per client."""


class StartingModel(ABC):
    """A start point of the method's own."""

    @abstractmethod
    def starting_model(self, x: Vec, layout: Layout) -> Vec:
        """Return the model that round 1 starts from, given the initial one."""


class TwoPhase(ABC):
    """A first phase of the round, in which each client processes all of its data at `x` before training."""

    def probe_broadcast(self, s: State) -> State:
        """Return what the server sends to the clients besides `x` in the first phase."""
        return {}

    @abstractmethod
    def probe(self, local: LocalData, ctx: Context) -> State:
        """Return a client's upload of the first phase, computed from all of its data at `x`."""

    @abstractmethod
    def after_probe(self, s: State, uploads: Uploads, cohort: Cohort) -> State:
        """Return the server state for the rest of the round; it is dropped if no client completes the round."""


class LocalPass(ABC):
    """A pass over all of a client's data at `x`, before its first step, for what only the client needs."""

    @abstractmethod
    def prepare(self, local: LocalData, ctx: Context) -> State:
        """Return what `direction` and `finish` find in `ctx.prepared`, one row per client."""


class LocalRates(ABC):
    """Learning rates that differ between clients."""

    @abstractmethod
    def local_lr(self, ctx: Context) -> Floats:
        """Return each client's learning rate, `(K,)`; `ctx.learning_rates` holds the round's default.

        A server of real clients computes it as well, from their numbers of samples; it does not know their counts.
        """


class RoundMetrics(ABC):
    """The method's own entries in the metrics."""

    @abstractmethod
    def metrics(self, s: State, cohort: Cohort) -> dict[str, float]:
        """Return the numbers to record, given the server state that the round was trained with."""


class Momentum(ABC):
    """Momentum that feeds back into itself with a gain that depends on the clients, and must stay below 1."""

    @abstractmethod
    def starting_gain(self, population: Population, samples: Ints) -> float:
        """Return the gain at the start of training, given each client's number of samples."""
