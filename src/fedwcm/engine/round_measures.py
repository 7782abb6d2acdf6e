"""What is measured of a round: who took part, how training went, and the bytes that were exchanged."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fedwcm.core.types import Floats, LeftOut, bytes_of
from fedwcm.engine.client import Broadcast
from fedwcm.engine.cohort_updates import CohortUpdates
from fedwcm.engine.server import RoundResult

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
    """Entropy in nats of the clients' weights: log m when they are even, 0 when one client has all the weight."""
    p = weights[weights > 0] / weights.sum()
    return float(0.0 - (p * np.log(p)).sum())  # not -0.0 for one client
