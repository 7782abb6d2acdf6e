"""The interface of a federated method. Its defaults are FedAvg.

A method is a frozen dataclass of hyper-parameters with pure hooks: none of them modifies `self`, its arguments or
global state. All methods use the same letters: `x` global model, `w` local models, `g` gradient, `v` direction,
`s` server state, `c` client state. `delta = w − x` is an increment (added to a model); gradients and momenta point
uphill (descent subtracts them).

Hooks that only a few methods need are in the mix-ins of `fedwcm.core.mixins`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedwcm.core.checks import Needs, require, require_choices
from fedwcm.core.optimizer_rule import ANY_OPTIMIZER, OptimizerRule
from fedwcm.core.types import (
    Clients,
    Cohort,
    Context,
    Floats,
    GradientOracle,
    Population,
    Report,
    State,
    Uploads,
    Vec,
)


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

    needs: ClassVar[Mapping[str, Needs]] = {}
    """What options need to have an effect; one that differs from its default without it is refused by name."""

    server_lr: float = 1.0
    average: Literal["samples", "uniform"] = "samples"

    def __post_init__(self) -> None:
        require_choices(self)
        require(self.server_lr > 0, "server_lr", self.server_lr, "positive")

    @property
    def depends_on_rounds(self) -> bool:
        """Whether it reads `population.rounds`: then a finished run cannot be continued with more rounds."""
        return False

    # --- before the first round -----------------------------------------------------------------
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

        Pass weights of your own through `cohort.limited`: a run with `aggregation.max_share` refuses larger ones.
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
    return cohort.limited(sizes / sizes.sum())
