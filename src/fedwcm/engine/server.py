"""The server's side of a round: sums over the uploads, the method's update, a moving average of the model.

And what is measured of the round: who took part, how training went, and the bytes that were exchanged.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from fedwcm.core.method import Method, RoundMetrics, ServerTraining, mean_weights
from fedwcm.core.types import Cohort, Floats, LeftOut, State, Uploads, Vec, bytes_of
from fedwcm.engine.client import Broadcast
from fedwcm.engine.hook_checks import check_model, check_tuple, check_weights, lend
from fedwcm.engine.server_data import ServerSamples
from fedwcm.engine.uploads import CohortUpdates


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


def update(
    method: Method,
    x: Vec,
    buffers: Vec,
    s: State,
    uploads: Uploads,
    cohort: Cohort,
    own_data: ServerSamples | None = None,
) -> RoundResult:
    """Let the method update the model, and train it on the server's own data; buffers are averaged by samples."""
    weights = check_weights(method.weights, method.weights(s, cohort), cohort)
    with lend(method.update, {"x": x, **s}):
        outcome = method.update(x, s, uploads, cohort)
    x_next, s_next = check_tuple(method.update, outcome, "model", "server state")
    check_model(method.update, x_next, x)
    if len(buffers):
        buffers = uploads.sum("buffers", mean_weights("samples", cohort))
    if isinstance(method, ServerTraining):
        assert own_data is not None, "a run of such a method without data for its server is refused"
        own_data = replace(own_data, buffers=buffers)
        with lend(method.refine, {"x": x, "x_next": x_next, **s_next}):
            outcome = method.refine(x, x_next, s_next, uploads, own_data, cohort)
        x_next, s_next = check_tuple(method.refine, outcome, "model", "server state")
        check_model(method.refine, x_next, x)
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


LISTED_WEIGHTS = 200
"""Clients of a round up to which each one's weight is recorded."""


@dataclass(frozen=True, kw_only=True)
class RoundMeasures:
    """The numbers of a round; the fields mean what they mean in a round's record, and have the same names.

    Those of the training are None in a round without an answer. The accuracy, the clients and their weights are
    None in a round that is not recorded, too.
    """

    participants: int = 0
    bytes_down: int
    bytes_up: int
    left_out: Mapping[str, str] | None = None
    train_loss: float | None = None
    train_accuracy: float | None = None
    weights_entropy: float | None = None
    clients: tuple[int, ...] | None = None
    weights: tuple[float, ...] | None = None
    extra: Mapping[str, float] = field(default_factory=dict)

    def of_training(self, result: CohortUpdates, after: RoundResult) -> "RoundMeasures":
        """Add the numbers of those that answered."""
        return replace(
            self,
            participants=len(result.ids),
            train_loss=_mean_of_known(result.loss),
            train_accuracy=_mean_of_known(result.accuracy),
            weights_entropy=_entropy(after.weights),
            extra=after.metrics,
        )

    def with_weights(self, result: CohortUpdates, after: RoundResult) -> "RoundMeasures":
        """Add who took part and how much each counted, to six digits; nothing of a large cohort."""
        if len(result.ids) > LISTED_WEIGHTS:
            return self
        weights = tuple(float(f"{weight:.6g}") for weight in after.weights)
        return replace(self, clients=tuple(result.ids.tolist()), weights=weights)


def _mean_of_known(values: Floats) -> float | None:
    """Return the mean over the clients that have told theirs; None if nobody has."""
    known = values[~np.isnan(values)]
    return float(np.mean(known)) if len(known) else None


class Traffic:
    """The bytes that a round sends and gets back, and the clients that it goes on without."""

    def __init__(self, sampled: int) -> None:
        self._sampled, self._down, self._up = sampled, 0, 0
        self._left_out: dict[int, LeftOut] = {}

    def count_broadcast(self, sent: Broadcast) -> None:
        """Count what every sampled client is sent."""
        self._down += self._sampled * (bytes_of({"x": sent.x, "buffers": sent.buffers}) + bytes_of(sent.message))

    def count_reports(self, result: CohortUpdates) -> None:
        """Count the reports of those that answered; a number takes 8 bytes."""
        self._up += 8 * len(result.ids) * len(result.report)
        self._left_out |= result.left_out

    def count_uploads(self, size: int, lost: Mapping[int, LeftOut]) -> None:
        """Count the bytes that their sums took, and note the clients whose uploads were lost."""
        self._up += size
        self._left_out |= lost

    def measures(self) -> RoundMeasures:
        """Return the measures of a round in which nobody answered."""
        left_out = {str(client): str(why) for client, why in self._left_out.items()}
        return RoundMeasures(bytes_down=self._down, bytes_up=self._up, left_out=left_out or None)


def _entropy(weights: Floats) -> float:
    """Return the entropy in nats of the clients' weights: log m when they are even, 0 when one has all."""
    p = weights[weights > 0] / weights.sum()
    return float(0.0 - (p * np.log(p)).sum())  # not -0.0 for one client
