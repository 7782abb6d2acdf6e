"""The interface of a federated method. Its defaults are FedAvg.

A method is a frozen dataclass of hyper-parameters with pure hooks: none writes to `self`, to its arguments or
to a global. Letters are fixed across the zoo: `x` global model, `w` local models, `g` gradient, `v`
direction, `s` server state, `c` client state. `delta = w − x` is an increment; gradients and momenta are
gradients (descent subtracts them).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedwcm.core.checks import require, require_choices
from fedwcm.core.types import (
    Clients,
    Cohort,
    Combination,
    Context,
    Floats,
    GradientOracle,
    Ints,
    Point,
    Population,
    Report,
    State,
    Vec,
)
from fedwcm.engine.fast.affine_step import Blend
from fedwcm.engine.local_data import LocalData


@dataclass(frozen=True, kw_only=True)
class Method:
    """Hooks of a method, in the order in which a round calls them.

    Args:
        server_lr: step of the server along the averaged increment.
        average: weigh the clients by their samples, or all the same.
    """

    name: ClassVar[str] = ""
    probes: ClassVar[bool] = False
    """Whether a round starts with a first phase: every client probes its data at `x` before training."""

    server_lr: float = 1.0
    average: Literal["samples", "uniform"] = "samples"

    def __post_init__(self) -> None:
        require_choices(self)
        require(self.server_lr > 0, "server_lr", self.server_lr, "positive")

    # --- before the first round -----------------------------------------------------------------
    def survey(self, counts: Ints, population: Population) -> Report:
        """On every client, once: what it computes from its own class counts `(K, C)` and reports."""
        return {}

    def init(self, x: Vec, population: Population, survey: Report) -> State:
        """The server's state."""
        return {}

    def init_client(self, x: Vec, clients: Clients) -> State:
        """The clients' own state at their first participation, one row a client."""
        return {}

    def starting_gain(self, population: Population, samples: Ints) -> float | None:
        """Gain of the momentum feedback with which training starts; None without momentum."""
        return None

    # --- on the server, before training -----------------------------------------------------------
    def probe_message(self, s: State) -> State:
        """What travels with `x` to the probing clients (only if the method probes)."""
        return {}

    def message(self, s: State, probed: State) -> State:
        """What travels with `x` to the training clients; `probed` is the combined first phase."""
        return {}

    # --- on the clients -----------------------------------------------------------------------------
    def probe(self, local: LocalData, ctx: Context) -> State:
        """First phase: an upload computed from all local data at `x`."""
        return {}

    def local_lr(self, ctx: Context) -> Floats:
        """Each client's learning rate, `(K,)`; `ctx.learning_rates` holds the round's."""
        return ctx.learning_rates

    def prepare(self, c: State, ctx: Context) -> State:
        """Once a round, before the first step: what each step finds in `ctx.prepared`, one row a client."""
        return {}

    def blend(self, c: State, ctx: Context) -> Blend:
        """Once a round, before the first step: what a step does with its gradient, `scale·g + shift + pull·w`."""
        return Blend()

    def gradient_at(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> Point:
        """At each local step, the point whose gradient it takes."""
        return w

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        """At each local step, the direction to descend along, and the client state after it.

        For methods that `blend` and `gradient_at` cannot express: the default is made of the two, and the loop
        then takes a shorter way to the same end. `w` is moved in place: what is to remember it must keep a clone.
        """
        return ctx.blend.of(grad(self.gradient_at(w, grad, c, ctx)), w), c

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        """After the last step: the upload (aggregated linearly), a small report, the client state to keep."""
        return {"delta": w - ctx.x}, {}, c

    # --- on the server, after training --------------------------------------------------------------
    def combine_probe(self, s: State, cohort: Cohort) -> dict[str, Combination]:
        """Which linear combinations of the first phase's uploads the server forms."""
        return {}

    def weights(self, s: State, cohort: Cohort) -> Floats:
        """How much each client counts in the step of the global model."""
        return mean_weights(self.average, cohort)

    def combine(self, s: State, cohort: Cohort) -> dict[str, Combination]:
        """Which linear combinations of the uploads the server forms."""
        return {"delta": Combination("delta", self.weights(s, cohort))}

    def update(self, x: Vec, s: State, agg: State, cohort: Cohort) -> tuple[Vec, State]:
        """The next global model and server state, from the combinations."""
        return x.add(agg["delta"], alpha=self.server_lr), s

    def diagnostics(self, s: State, cohort: Cohort) -> dict[str, float]:
        """Numbers worth a line in the metrics, from the state with which the round was trained."""
        return {}

    # --- for evaluation -------------------------------------------------------------------------------
    def eval_params(self, x: Vec, s: State) -> Vec:
        """The model to evaluate and to hand over, where it is not `x` itself."""
        return x


def mean_weights(average: Literal["samples", "uniform"], cohort: Cohort) -> Floats:
    """Weights that sum to 1: in proportion to the clients' samples, or even."""
    sizes = cohort.samples.astype(float) if average == "samples" else cohort.samples * 0.0 + 1.0
    weights: Floats = sizes / sizes.sum()
    return weights
