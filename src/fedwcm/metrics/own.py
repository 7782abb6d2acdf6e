"""Metrics beyond those of every run: the named ones of `run.metrics`, and what a user's own are called with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedwcm.core.batch import Inputs
from fedwcm.core.types import Ints
from fedwcm.metrics.calibration import class_calibration_errors


@dataclass(frozen=True, eq=False)
class Evaluated:
    """A model on the test data after a round.

    Args:
        round: its number.
        labels: the class of each sample.
        logits: of each sample and class, on the scale of the loss.
        train_counts: training samples of each class.
        inputs: what the model was given, normalised.
        folder: of the run, for files of the metric's own; None if it has none.
        make_model: makes a copy of the model.
    """

    round: int
    labels: Ints
    logits: NDArray[np.float32]
    train_counts: Ints
    inputs: Inputs
    folder: Path | None
    make_model: Callable[[], nn.Module]

    @cached_property
    def probabilities(self) -> NDArray[np.float64]:
        """Of each sample and class."""
        powers = np.exp(self.logits - self.logits.max(axis=1, keepdims=True), dtype=np.float64)
        shares: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
        return shares

    @cached_property
    def model(self) -> nn.Module:
        """The model, in evaluation mode: a copy, with which a metric may do as it likes."""
        return self.make_model()


Metric = Callable[[Evaluated], float | Mapping[str, float]]
"""A number, or several by name, of a tested model."""


def auc(tested: Evaluated) -> float:
    """Return the area under the ROC curve of each class against the rest, averaged over the tested classes."""
    return _mean_over_classes(tested, _area_under_roc)


def average_precision(tested: Evaluated) -> float:
    """Return the area under the precision-recall curve of each class, averaged over the tested classes."""
    return _mean_over_classes(tested, _average_precision)


def brier(tested: Evaluated) -> float:
    """Return the mean squared distance of the probabilities from the class (Brier, 1950)."""
    right = np.eye(len(tested.train_counts))[tested.labels]
    return float(((tested.probabilities - right) ** 2).sum(axis=1).mean())


def ece(tested: Evaluated) -> float:
    """Return the calibration error of each class's probability, averaged: rare classes count as much as others."""
    return float(np.mean(class_calibration_errors(tested.probabilities.astype(np.float32), tested.labels)))


METRICS: dict[str, Metric] = {"auc": auc, "average_precision": average_precision, "brier": brier, "ece": ece}


def _mean_over_classes(
    tested: Evaluated, measure: Callable[[NDArray[np.float64], NDArray[np.bool_]], float]
) -> float:
    members = [(p, tested.labels == c) for c, p in enumerate(tested.probabilities.T)]
    values = [measure(p, mine) for p, mine in members if 0 < mine.sum() < len(mine)]
    return float(np.mean(values)) if values else float("nan")


def _area_under_roc(scores: NDArray[np.float64], mine: NDArray[np.bool_]) -> float:
    """Return the share of pairs that are ordered rightly; equal scores count half."""
    others = np.sort(scores[~mine])
    below = np.searchsorted(others, scores[mine], "left") + np.searchsorted(others, scores[mine], "right")
    return float(below.mean() / 2 / len(others))


def _average_precision(scores: NDArray[np.float64], mine: NDArray[np.bool_]) -> float:
    """Return Σ (recall gained) · precision over the thresholds, one for each different score."""
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.diff(scores[order]) != 0, True)  # of equal scores, the last one is the threshold
    found, taken = np.cumsum(mine[order])[last], np.flatnonzero(last) + 1
    return float((np.diff(found, prepend=0) / mine.sum() * found / taken).sum())
