"""The server's side of a round: sums over the uploads, and the method's update."""

from dataclasses import dataclass

from fedwcm.core.method import Method, mean_weights
from fedwcm.core.mixins import RoundMetrics
from fedwcm.core.types import Cohort, Floats, State, Uploads, Vec
from fedwcm.engine.hook_checks import check_tuple, check_weights


@dataclass(frozen=True, eq=False)
class RoundResult:
    """What a round made: the next model, buffers and state, and what is worth recording of it."""

    x: Vec
    buffers: Vec
    state: State
    weights: Floats
    metrics: dict[str, float]
    bound: float | None = None
    """The bound on the norms of the round's increments."""
    clipped: int = 0
    """Increments that were scaled down to the bound of the round."""


def update(method: Method, x: Vec, buffers: Vec, s: State, uploads: Uploads, cohort: Cohort) -> RoundResult:
    """Let the method update the model; buffers are averaged by samples."""
    weights = check_weights(method.weights, method.weights(s, cohort), cohort)
    x_next, s_next = check_tuple(method.update, method.update(x, s, uploads, cohort), "model", "server state")
    if len(buffers):
        buffers = uploads.sum("buffers", mean_weights("samples", cohort))
    metrics = method.metrics(s, cohort) if isinstance(method, RoundMetrics) else {}
    return RoundResult(x_next, buffers, s_next, weights, metrics)
