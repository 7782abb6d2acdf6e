"""Whether probabilities mean something: of samples predicted with confidence 0.8, four in five should be right.

Guo, Pleiss, Sun, Weinberger. On Calibration of Modern Neural Networks. ICML 2017.
"""

import numpy as np
from numpy.typing import NDArray

from fedwcm.core.types import Ints
from fedwcm.engine.evaluate import Evaluation

BINS = 15
"""Bins of equal width over confidences from 0 to 1."""


def expected_calibration_error(tested: Evaluation) -> float:
    """Return Σ_b n_b/n · |accuracy_b − confidence_b| over bins b of the confidence of the predicted class."""
    return _error(tested.confidence, tested.correct)


def reliability(tested: Evaluation) -> dict[str, tuple[float | None, ...]]:
    """Return the `samples` in each bin of the confidence, their mean `confidence`, and their `accuracy`."""
    bins = _bins(tested.confidence)
    samples = np.bincount(bins, minlength=BINS).tolist()
    columns: dict[str, tuple[float | None, ...]] = {"samples": tuple(samples)}
    for name, values in (("confidence", tested.confidence.astype(float)), ("accuracy", tested.correct)):
        sums = np.bincount(bins, weights=values, minlength=BINS).tolist()
        columns[name] = tuple(total / n if n else None for total, n in zip(sums, samples, strict=True))
    return columns


def class_calibration_errors(probabilities: NDArray[np.float32], labels: Ints) -> list[float]:
    """Return the calibration error of each class: of its probability, against the share of samples that have it.

    Kull, Perello Nieto, Kängsepp, Silva Filho, Song, Flach. Beyond Temperature Scaling. NeurIPS 2019.
    """
    return [_error(p, labels == c) for c, p in enumerate(probabilities.T)]


def _error(confidence: NDArray[np.float32], correct: NDArray[np.bool_]) -> float:
    gaps = np.bincount(_bins(confidence), weights=correct - confidence.astype(float), minlength=BINS)
    return float(np.abs(gaps).sum() / len(confidence))


def _bins(confidence: NDArray[np.float32]) -> Ints:
    bins: Ints = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    return bins
