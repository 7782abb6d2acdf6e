"""The interface of a federated method. Its defaults are FedAvg.

A method is a frozen dataclass of hyper-parameters with pure hooks: none writes to `self`, to its arguments or
to a global. Letters are fixed across the zoo: `x` global model, `w` local models, `g` gradient, `v`
direction, `s` server state, `c` client state. `delta = w − x` is an increment; gradients and momenta are
gradients (descent subtracts them).

What few methods need is opted into by the mix-ins of `fedwcm.core.mixins`.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedwcm.core.checks import require, require_choices
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
        average: weigh the clients by their samples, or all the same.
    """

    name: ClassVar[str] = ""

    server_lr: float = 1.0
    average: Literal["samples", "uniform"] = "samples"

    def __post_init__(self) -> None:
        require_choices(self)
        require(self.server_lr > 0, "server_lr", self.server_lr, "positive")

    # --- before the first round -----------------------------------------------------------------
    def init(self, x: Vec, population: Population) -> State:
        """Return the server's state before the first round."""
        return {}

    def init_client(self, x: Vec, clients: Clients) -> State:
        """Return the clients' own state at their first participation, one row per client."""
        return {}

    # --- each round -------------------------------------------------------------------------------
    def broadcast(self, s: State) -> State:
        """Return what the server sends to the clients besides `x`; they find it in `ctx.message`."""
        return {}

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        """Return the direction that a local step descends along, and the client state after the step.

        Called for every step, or once a round where the engine finds the direction to be affine in the gradient
        and the model; either way the models are the same. `w` is moved in place afterwards: a hook that wants to
        remember it must keep a clone.
        """
        return grad(w), c

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        """Return, after the last step, the upload, a small plain report, and the client state to keep."""
        return {"delta": w - ctx.x}, {}, c

    def weights(self, s: State, cohort: Cohort) -> Floats:
        """Return how much each client counts in the step of the global model."""
        return mean_weights(self.average, cohort)

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        """Return the next global model and server state, from sums over the uploads."""
        return x.add(uploads.sum("delta", self.weights(s, cohort)), alpha=self.server_lr), s

    # --- for evaluation -------------------------------------------------------------------------------
    def eval_params(self, x: Vec, s: State) -> Vec:
        """Return the model to evaluate and to hand over, where it is not `x` itself."""
        return x


def mean_weights(average: Literal["samples", "uniform"], cohort: Cohort) -> Floats:
    """Return weights that sum to 1: in proportion to the clients' samples, or even."""
    sizes = cohort.samples.astype(float) if average == "samples" else cohort.samples * 0.0 + 1.0
    weights: Floats = sizes / sizes.sum()
    return weights
