"""What one model can do: its accuracy and that of rare classes as its logits move towards frequent or rare ones.

The logits u + t · log p, with p the class distribution of the training data: t > 0 favours frequent classes, t < 0
rare ones. For a plainly trained model t = −1 is Bayes' rule for equally frequent classes. Methods are compared by
their curves, since single points of different curves say nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedwcm.core.types import Floats, Ints
from fedwcm.engine.evaluate import CHUNK
from fedwcm.metrics.classification import ShotRule, shot_groups

STRENGTHS = tuple(round(0.1 * step, 1) for step in range(-25, 26))
"""The values of t that are tried."""

DRAWN = tuple(round(0.25 * step, 2) for step in range(-10, 11))
"""The values of t of a curve that a run keeps."""


@dataclass(frozen=True)
class TradeOff:
    """Accuracy, balanced accuracy and that of classes with few samples at every t; None where there is no such."""

    strength: tuple[float, ...]
    test_accuracy: tuple[float, ...]
    balanced_accuracy: tuple[float, ...]
    few: tuple[float | None, ...]

    def best(self, metric: Literal["accuracy", "balanced_accuracy"]) -> float:
        """Return the t with the highest value, the one closest to 0 of equals."""
        reached = self.test_accuracy if metric == "accuracy" else self.balanced_accuracy
        return max(zip(reached, self.strength, strict=True), key=lambda pair: (pair[0], -abs(pair[1])))[1]


def trade_off(
    chunks: Iterable[Tensor],
    labels: Tensor,
    shares: Floats,
    counts: Ints,
    rule: ShotRule = "range",
    strengths: tuple[float, ...] = STRENGTHS,
) -> TradeOff:
    """Return the curve of a model.

    Args:
        chunks: its logits, in chunks of `CHUNK` samples.
        labels: the classes of the samples.
        shares: p, none of them 0.
        counts: training samples of each class, which say which are rare.
        rule: as in `shot_groups`.
        strengths: the values of t.
    """
    hits, classes = np.zeros((len(strengths), len(shares))), len(shares)
    direction = torch.as_tensor(np.log(shares), dtype=torch.float32, device=labels.device)
    for logits, actual in zip(chunks, labels.split(CHUNK), strict=True):
        for i, strength in enumerate(strengths):
            right = (logits + strength * direction).argmax(dim=-1) == actual
            hits[i] += torch.bincount(actual[right], minlength=classes).cpu().numpy()
    tested = torch.bincount(labels, minlength=classes).cpu().numpy()
    recalls = np.divide(hits, tested, out=np.full_like(hits, np.nan), where=tested > 0)
    few = shot_groups(counts, rule).get("few", np.empty(0, dtype=np.int64))
    has_few = bool(tested[few].sum()) if len(few) else False
    rare = np.nanmean(recalls[:, few], axis=1).tolist() if has_few else [None] * len(strengths)
    return TradeOff(
        strengths,
        tuple((hits.sum(axis=1) / tested.sum()).tolist()),
        tuple(np.nanmean(recalls, axis=1).tolist()),
        tuple(rare),
    )
