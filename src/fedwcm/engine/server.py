"""The server's side of a round: sums over the uploads, the method's update, a moving average of the model."""

from dataclasses import dataclass

import torch

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


def moving_average(average: State, x: Vec, buffers: Vec, decay: float) -> State:
    """Return the moving average of the global model after another round, with W_t beside it.

    With x_1, …, x_t the models after each round and d the decay (`server.ema`),

        a_t = Σ_i d^(t−i) x_i / W_t  =  a_{t−1} + (x_t − a_{t−1}) / W_t,      W_t = Σ_i d^(t−i) = d W_{t−1} + 1

    The weights sum to 1 from the first round on, so that the initial model never counts: the first round is the
    first that a client answered. BatchNorm's buffers are averaged in the same way. Clients never see the average,
    so training is the same with and without it.
    """
    total = decay * float(average.get("total", 0.0)) + 1.0
    current = {"x": x, "buffers": buffers}
    mean = {key: torch.lerp(average.get(key, value), value, 1.0 / total) for key, value in current.items()}
    return {**mean, "total": torch.tensor(total, dtype=torch.float64)}
