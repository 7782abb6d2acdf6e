"""FedBuff in NumPy: late answers on a clock count less the older the model is that they started from."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .zoo_losses import Vector, cross_entropy
from .zoo_shared import Cohorts
from .zoo_two_layer import Batch, Clients, Data, TwoLayer


@dataclass(frozen=True)
class Clock:
    """The time that each client needs for a round's work, how long the server waits, and how late is too late."""

    seconds: Sequence[float]
    deadline: float
    staleness: int

    def late(self, k: int) -> int:
        """The rounds by which the answer of a client is late."""
        return math.ceil(self.seconds[k] / self.deadline - 1e-9) - 1


class Answer(NamedTuple):
    """An answer on its way: the rounds in which it started and arrives, and the move."""

    started: int
    arrives: int
    move: Vector


class BufferedRun(NamedTuple):
    """After each round, the model, and the ages of the answers that arrived in it by client."""

    models: list[Vector]
    ages: list[dict[int, int]]


def run_fedbuff(
    x0: ArrayLike,
    net: TwoLayer,
    data: Data,
    sizes: ArrayLike,
    cohorts: Cohorts,
    *,
    clock: Clock,
    power: float = 0.5,
    average: str = "uniform",
    **local: Any,
) -> BufferedRun:
    """FedBuff (Nguyen et al. 2022) by rounds: x + server_lr sum_k p_k (1 + tau_k)^-power Delta_k.

    p_k is the mean's weight among the answers that arrive, 1/|S|. A cohort is whom the server asks; a client still
    at work, until the end of the round in which its answer arrives, is passed over. One that would be too late
    sends nothing, and is free again.
    """
    clients = Clients(data, sizes, cohorts, average=average, **local)
    x, working, run = np.array(x0, dtype=np.float64), dict[int, Answer](), BufferedRun([], [])

    def gradient(batch: Batch, y: Vector) -> Vector:
        return net.backward(y, batch.inputs, cross_entropy(net.logits(y, batch.inputs), batch.labels)[1])

    for r, cohort in enumerate(cohorts):
        eta = clients.fed.local_lr * clients.fed.lr_decay**r
        for k in cohort:
            if k not in working and clock.late(k) <= clock.staleness:
                move = clients.train(k, r, eta, x, gradient) - x
                working[k] = Answer(r, r + clock.late(k), move)
        arrived = {k: working.pop(k) for k in sorted(working) if working[k].arrives == r}
        ages = {k: r - answer.started for k, answer in arrived.items()}
        for p_k, (k, answer) in zip(clients.fed.weights(list(arrived), average), arrived.items(), strict=True):
            x = x + clients.server_lr * p_k * (1 + ages[k]) ** -power * answer.move
        run.models.append(x)
        run.ages.append(ages)
    return run
