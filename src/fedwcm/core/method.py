"""The interface of a federated method. Its defaults are FedAvg.

A method is a frozen dataclass of hyper-parameters with pure hooks: none of them modifies `self`, its arguments or
global state. All methods use the same letters: `x` global model, `w` local models, `g` gradient, `v` direction,
`s` server state, `c` client state. `delta = w − x` is an increment (added to a model); gradients and momenta point
uphill (descent subtracts them).

Hooks that only a few methods need are mix-ins: list one before `Method` and define its hooks.

| mix-in | what it adds | methods |
|---|---|---|
| `ClientStatistics` | numbers that every client computes once, before round 1 | FedWCM and all `+wcm` |
| `StartingModel` | a change to the model before round 1 | FedETF |
| `TwoPhase` | a first phase of the round, over all local data at `x` | Mime, MimeLite, CReFF, CLIP2FL |
| `LocalPass` | a pass over all local data at `x` before the first step | q-FFL |
| `FinalPass` | a pass over all local data at the trained model | FedProto |
| `ClientChoice` | which clients train in a round | Power-of-Choice |
| `LocalRates` | a learning rate per client | FedWCM-X |
| `OwnStart` | local training that starts elsewhere than at `x` | FedPer, FedRep, FedBN |
| `PersonalModels` | a model for each client, measured on its own samples | Ditto, pFedMe, FedPer, FedBN |
| `ServerTraining` | training on samples of the server's own | FedIC |
| `RoundMetrics` | the method's own entries in a round's metrics | FedCM's family, Fed-GraB |
| `Momentum` | the gain of a momentum that may grow, checked once | FedCM's family |
| `SharpnessAware` (`methods/sam.py`) | gradients at the ascended point | FedSAM, MoFedSAM, FedGamma, FedSpeed |
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedwcm.core.batch import LocalData, ServerData
from fedwcm.core.checks import Needs, require, require_allowed
from fedwcm.core.ranges import Positive
from fedwcm.core.types import (
    Clients,
    Cohort,
    Context,
    Floats,
    GradientOracle,
    Ints,
    Layout,
    Population,
    Report,
    State,
    Uploads,
    Vec,
)


@dataclass(frozen=True)
class OptimizerRule:
    """What a method permits as the clients' optimizer, and why nothing else.

    Args:
        permits: `any` optimizer; SGD with or without `momentum`, whose increment is a sum of the directions with
            known weights; or `plain` SGD.
        because: the reason, for the error message.
    """

    permits: Literal["any", "momentum", "plain"]
    because: str = ""

    def check(self, method: str, optimizer: str, momentum: float) -> None:
        """Raise a ValueError that names option, method and reason if the optimizer is not permitted."""
        why = f"with the method {method}: {self.because}"
        require(self.permits == "any" or optimizer == "sgd", "local.optimizer", optimizer, f"sgd {why}")
        require(self.permits != "plain" or not momentum, "local.momentum", momentum, f"0 {why}")


ANY_OPTIMIZER = OptimizerRule("any")


@dataclass(frozen=True, kw_only=True)
class Method:
    """Hooks of a method, in the order in which a round calls them.

    Args:
        server_lr: step of the server along the averaged increment.
        average: weight the clients by their samples, or all equally.
    """

    name: ClassVar[str] = ""
    optimizers: ClassVar[OptimizerRule] = ANY_OPTIMIZER
    """What the method's maths permits as the clients' optimizer (`local.optimizer`)."""
    replaces_head: ClassVar[bool] = False
    """Whether the method trains a linear layer, on balanced classes, that takes the place of the model's head."""
    uses_full_gradient: ClassVar[bool] = False
    """Whether local steps are corrected by gradients over all samples of a client, each counted once."""

    reads_rows: ClassVar[bool] = False
    """Whether the server reads single uploads (`uploads.rows`), which secure aggregation refuses."""
    reads_losses: ClassVar[bool] = False
    """Whether the server reads the clients' training losses (`cohort.losses`), which private runs withhold."""
    discloses: ClassVar[str] = ""
    """What uploads say outright of a client's classes: private runs then need sums that hide single uploads."""

    needs: ClassVar[Mapping[str, Needs]] = {}
    """What options need to have an effect; one that differs from its default without it is refused by name."""

    server_lr: Positive = 1.0
    average: Literal["samples", "uniform"] = "samples"

    def __post_init__(self) -> None:
        require_allowed(self)

    @property
    def depends_on_rounds(self) -> bool:
        """Whether it reads `population.rounds`: then a finished run cannot be continued with more rounds."""
        return False

    # --- before the first round -----------------------------------------------------------------
    def check_model(self, layout: Layout) -> None:
        """Raise ValueError for a model that it was not made for."""
        return

    def init(self, x: Vec, population: Population) -> State:
        """Return the server's state before the first round."""
        return {}

    def init_client(self, x: Vec, clients: Clients) -> State:
        """Return the clients' own state at their first participation, one row per client."""
        return {}

    # --- each round -------------------------------------------------------------------------------
    def broadcast(self, s: State) -> State:
        """Return what the server sends to the clients besides `x`; they read it from `ctx.message`."""
        return {}

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        """Return the direction that a local step descends along, and the client state after the step.

        Called at every step, or once per round if the engine finds that the direction is affine in the gradient
        and the model; the resulting models are the same. `w` is updated in place afterwards: a hook that stores
        it must store a clone.
        """
        return grad(w), c

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        """Return, after the last step, the upload, a report of plain numbers, and the client state to keep."""
        return {"delta": w - ctx.x}, {}, c

    def weights(self, s: State, cohort: Cohort) -> Floats:
        """Return the weight of each client in the update of the global model, up to the run's largest share.

        Pass weights of your own through `cohort.limit_shares`: a run may refuse larger shares.
        """
        return mean_weights(self.average, cohort)

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        """Return the next global model and server state, from sums over the uploads."""
        return x.add(uploads.sum("delta", self.weights(s, cohort)), alpha=self.server_lr), s

    # --- for evaluation -------------------------------------------------------------------------------
    def eval_params(self, x: Vec, s: State) -> Vec:
        """Return the model to evaluate and export; by default `x` itself."""
        return x


def mean_weights(average: Literal["samples", "uniform"], cohort: Cohort) -> Floats:
    """Return weights that sum to 1: proportional to the clients' samples up to the largest share, or equal."""
    sizes = cohort.samples.astype(float) if average == "samples" else np.ones(len(cohort))
    return cohort.limit_shares(sizes / sizes.sum())


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


class FinalPass(ABC):
    """A pass over all of a client's data at its trained model, after its last step."""

    @abstractmethod
    def conclude(self, w: Vec, local: LocalData, ctx: Context) -> State:
        """Return what `finish` finds in `ctx.prepared`, one row per client."""


class ClientChoice(ABC):
    """A round's clients chosen by the method, from what its server has seen: `cohort.losses`, reports, sizes."""

    @abstractmethod
    def choose(self, s: State, size: int, samples: Ints, rng: np.random.Generator) -> Ints:
        """Return the ids of the clients to ask, given how many the run asks and the samples of all clients."""


class LocalRates(ABC):
    """Learning rates that differ between clients."""

    @abstractmethod
    def local_lr(self, ctx: Context) -> Floats:
        """Return each client's learning rate, `(K,)`; `ctx.learning_rates` holds the round's default.

        A server of real clients computes it as well, from their numbers of samples; it does not know their counts.
        """


class OwnStart(ABC):
    """Local training that starts from a model of the client's own."""

    @abstractmethod
    def start(self, c: State, ctx: Context) -> Vec:
        """Return the models that the clients start from, `(K, P)`: a new tensor, which is trained in place."""


class PersonalModels(ABC):
    """A model for each client.

    The accuracies of the clients (`client_mean`, `client_worst_decile`, …) are then those of their own models; the
    test accuracy stays that of `eval_params`.
    """

    own_buffers: ClassVar[bool] = False
    """Whether buffers (BatchNorm's statistics) stay with the client, too: its model is measured with its own."""

    @abstractmethod
    def eval_clients(self, x: Vec, s: State, c: State, layout: Layout) -> Vec:
        """Return the model of each client `(K, P)`, given the model of all and what the clients keep."""


class ServerTraining(ABC):
    """Training on samples of the server's own, after `update`.

    They are a share of the training data (`data.server_fraction`) or, with Flower, `server_app(server_data=…)`.
    """

    @abstractmethod
    def refine(
        self, x: Vec, x_next: Vec, s: State, uploads: Uploads, data: ServerData, cohort: Cohort
    ) -> tuple[Vec, State]:
        """Return the next global model and server state.

        `x` is the model that the clients received; `x_next` and `s` are what `update` has made of it.
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
