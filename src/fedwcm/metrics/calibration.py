"""Whether probabilities mean something: of samples predicted with confidence 0.8, four in five should be right.

Guo, Pleiss, Sun, Weinberger. On Calibration of Modern Neural Networks. ICML 2017.
"""

import numpy as np

from fedwcm.engine.evaluate import Evaluation

BINS = 15
"""Bins of equal width over confidences from 0 to 1."""


def expected_calibration_error(tested: Evaluation) -> float:
    """Return Σ_b n_b/n · |accuracy_b − confidence_b| over bins b of the confidence of the predicted class."""
    bins = np.clip(np.ceil(tested.confidence * BINS).astype(int) - 1, 0, BINS - 1)
    gaps = np.bincount(bins, weights=tested.correct - tested.confidence.astype(float), minlength=BINS)
    return float(np.abs(gaps).sum() / len(bins))
