"""Training loss and accuracy of a block of clients, over their local steps.

Predictions are evaluated for many steps at once: after every single step, this would cost as much as a small
layer.
"""

from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedwcm.core.batch import Batch, mean_over
from fedwcm.core.types import Floats, Ints

HELD = 2**20
"""Number of logits above which the pending steps are evaluated."""


class StepMetrics(NamedTuple):
    """One local step of the clients that were still active; without logits if hits are not counted."""

    loss: Tensor
    logits: Tensor | None
    labels: Tensor
    weight: Tensor | None


class TrainingMetrics:
    """Sums over steps, on the device; the active clients of a step are the first of the block.

    Args:
        clients: of the block.
        accuracy: whether to count hits; else the accuracy is NaN.
    """

    def __init__(self, clients: int, accuracy: bool = True) -> None:
        self._clients, self._accuracy = clients, accuracy
        self._sums: list[Tensor] = []
        self._waiting: list[StepMetrics] = []
        self._held = 0

    def add(self, loss: Tensor, logits: Tensor, batch: Batch) -> None:
        """Record one step: each client's loss `(K,)`, and its model's logits on its batch."""
        kept = logits.detach() if self._accuracy else None
        self._waiting.append(StepMetrics(loss.detach(), kept, batch.labels, batch.weight))
        self._held += logits.numel()
        if self._held > HELD:
            self._count()

    def means(self, steps: Ints) -> tuple[Floats, Floats]:
        """Return the mean loss and accuracy of each client over its number of steps.

        The device is read here, once: at every step it would have to finish its work first.
        """
        self._count()
        totals = np.zeros((2, self._clients))
        if self._sums:
            widths = np.cumsum([sums.shape[1] for sums in self._sums])
            for sums in np.split(torch.cat(self._sums, dim=1).cpu().double().numpy(), widths[:-1], axis=1):
                totals[: len(sums), : sums.shape[1]] += sums
        return totals[0] / steps, totals[1] / steps if self._accuracy else np.full(self._clients, np.nan)

    def _count(self) -> None:
        for _, group in groupby(self._waiting, lambda step: (step.labels.shape, step.weight is None)):
            losses, logits, labels, weights = zip(*group, strict=True)
            loss = torch.stack(losses)
            sums = [loss.sum(dim=0)]
            if self._accuracy:
                weight = None if weights[0] is None else torch.stack(weights)
                hits = torch.stack(logits).argmax(dim=-1) == torch.stack(labels)
                sums.append(mean_over(hits.to(loss.dtype), weight).sum(dim=0))
            self._sums.append(torch.stack(sums))
        self._waiting, self._held = [], 0
