"""The expected calibration error of predictors whose calibration is known."""

import numpy as np
import pytest

from fedwcm.engine.evaluate import Evaluation
from fedwcm.metrics.calibration import class_calibration_errors, expected_calibration_error, reliability


def predictions(confidence: np.ndarray, correct: np.ndarray) -> Evaluation:
    labels = np.zeros(len(confidence), dtype=np.int64)
    losses = np.zeros(len(confidence), dtype=np.float32)
    return Evaluation(labels, np.where(correct, 0, 1), confidence.astype(np.float32), losses, 0.0, 2)


def test_it_is_the_mean_gap_of_the_bins_weighted_by_their_samples() -> None:
    confidence = np.array([0.9, 0.9, 0.9, 0.9, 0.5])
    correct = np.array([True, True, True, False, True])
    tested = predictions(confidence, correct)
    assert expected_calibration_error(tested) == pytest.approx((4 * 0.15 + 0.5) / 5)
    columns = {name: [value for value in row if value] for name, row in reliability(tested).items()}
    assert columns["samples"] == [1, 4]
    assert columns["confidence"] == pytest.approx([0.5, 0.9])
    assert columns["accuracy"] == [1.0, 0.75]


def test_it_tends_to_0_for_a_calibrated_predictor_and_to_the_bias_of_another() -> None:
    rng = np.random.default_rng(0)
    errors = []
    for samples in (200, 20_000, 200_000):
        confidence = rng.uniform(0.5, 0.9, samples)
        errors.append(expected_calibration_error(predictions(confidence, rng.random(samples) < confidence)))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.005
    right = rng.random(samples) < confidence + 0.1
    assert expected_calibration_error(predictions(confidence, right)) == pytest.approx(0.1, abs=0.01)


def test_the_error_of_a_class_is_that_of_its_probability() -> None:
    rng = np.random.default_rng(1)
    p = rng.dirichlet([2.0, 1.0, 0.5], size=100_000)
    labels = (rng.random(len(p))[:, None] > p.cumsum(axis=1)).sum(axis=1)
    assert max(class_calibration_errors(p.astype(np.float32), labels)) < 0.01
    swapped = class_calibration_errors(p[:, [0, 2, 1]].astype(np.float32), labels)
    assert swapped[0] < 0.01
    assert min(swapped[1:]) > 0.1
