"""What a few methods need besides the hooks of `Method`: mix in before it, and define the hooks.

| mix-in | what it adds | methods |
|---|---|---|
| `ClientStatistics` | a small number that every client computes once, before round 1 | FedWCM and all `+wcm` |
| `TwoPhase` | a first phase of the round, over all local data at `x` | Mime, MimeLite, CReFF, CLIP2FL |
| `LocalRates` | a learning rate for each client | FedWCM-X |
| `RoundMetrics` | numbers for the metrics of a round | FedCM's family, Fed-GraB |
| `Momentum` | the gain of the momentum's feedback, checked once | FedCM's family, FedAvgM, FedAdam, Mime |
| `SharpnessAware` (`methods/sam.py`) | gradients at the ascended point | FedSAM, MoFedSAM, FedGamma, FedSpeed |
"""

from abc import ABC, abstractmethod

from fedwcm.core.local_data import LocalData
from fedwcm.core.types import Cohort, Context, Floats, Ints, Population, Report, State, Uploads


class ClientStatistics(ABC):
    """Every client computes small numbers from its own class counts once, and reports them."""

    @abstractmethod
    def client_statistics(self, counts: Ints, population: Population) -> Report:
        """Return, on the clients, what they report of their class counts `(K, C)`."""

    @abstractmethod
    def with_statistics(self, s: State, statistics: Report) -> State:
        """Return, on the server, the initial state with what was reported, one entry per client."""


class TwoPhase(ABC):
    """A round starts with a first phase: each of its clients looks at all of its data at `x` before training."""

    def probe_broadcast(self, s: State) -> State:
        """Return what the server sends besides `x` to the clients of the first phase."""
        return {}

    @abstractmethod
    def probe(self, local: LocalData, ctx: Context) -> State:
        """Return a client's upload of the first phase, computed from all of its data at `x`."""

    @abstractmethod
    def after_probe(self, s: State, uploads: Uploads, cohort: Cohort) -> State:
        """Return the server state with which the round goes on; a round that nobody finishes forgets it."""


class LocalRates(ABC):
    """Clients have learning rates of their own."""

    @abstractmethod
    def local_lr(self, ctx: Context) -> Floats:
        """Return each client's learning rate, `(K,)`; `ctx.learning_rates` holds the round's."""


class RoundMetrics(ABC):
    """Numbers of the method's own in the metrics."""

    @abstractmethod
    def metrics(self, s: State, cohort: Cohort) -> dict[str, float]:
        """Return numbers worth recording, given the state with which the round was trained."""


class Momentum(ABC):
    """A momentum that feeds itself, with a gain that must stay below 1."""

    @abstractmethod
    def starting_gain(self, population: Population, samples: Ints) -> float:
        """Return the gain with which training starts, given each client's number of samples."""
