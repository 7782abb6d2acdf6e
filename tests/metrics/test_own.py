"""The named metrics of `run.metrics`: their values by definition."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from fedwcm.metrics.own import Evaluated, auc, average_precision, brier, ece


def model_with(probabilities: Sequence[Sequence[float]], labels: Sequence[int]) -> Evaluated:
    """A model with these outputs."""
    logits = np.log(np.array(probabilities, dtype=np.float32))
    counts = np.ones(logits.shape[1], dtype=np.int64)
    return Evaluated(1, np.array(labels), logits, counts, torch.zeros(len(labels), 1), None, nn.Identity)


@pytest.fixture
def drawn() -> Evaluated:
    rng = np.random.default_rng(0)
    shares = rng.integers(1, 5, (60, 3)).astype(float)  # with equal scores among them
    return model_with((shares / shares.sum(axis=1, keepdims=True)).tolist(), rng.integers(0, 3, 60).tolist())


def test_auc_is_the_share_of_pairs_that_are_ordered_rightly(drawn: Evaluated) -> None:
    expected = []
    for c in range(3):
        mine, others = drawn.probabilities[drawn.labels == c, c], drawn.probabilities[drawn.labels != c, c]
        expected.append(np.mean([(a > b) + 0.5 * (a == b) for a, b in product(mine, others)]))
    assert auc(drawn) == pytest.approx(np.mean(expected))


def test_average_precision_is_the_area_under_the_steps(drawn: Evaluated) -> None:
    expected = []
    for c in range(3):
        scores, mine, area, before = drawn.probabilities[:, c], drawn.labels == c, 0.0, 0.0
        for threshold in sorted(set(scores), reverse=True):
            taken = scores >= threshold
            recall = mine[taken].sum() / mine.sum()
            area, before = area + (recall - before) * mine[taken].mean(), recall
        expected.append(area)
    assert average_precision(drawn) == pytest.approx(np.mean(expected))


def test_a_sure_and_right_model_has_the_best_value_of_each() -> None:
    sure = model_with([[1 - 2e-9, 1e-9, 1e-9], [1e-9, 1 - 2e-9, 1e-9], [1e-9, 1e-9, 1 - 2e-9]], [0, 1, 2])
    assert [auc(sure), average_precision(sure)] == [1.0, 1.0]
    assert [brier(sure), ece(sure)] == pytest.approx([0.0, 0.0], abs=1e-6)


def test_brier_is_a_distance_squared() -> None:
    assert brier(model_with([[0.8, 0.2], [0.3, 0.7]], [0, 0])) == pytest.approx((2 * 0.04 + 2 * 0.49) / 2)


def test_probabilities_of_large_logits_are_finite() -> None:
    labels, counts = np.array([0, 1]), np.ones(2, dtype=np.int64)
    logits = np.array([[1000.0, 999.0], [-1000.0, -1000.0]], dtype=np.float32)
    model = Evaluated(1, labels, logits, counts, torch.zeros(2, 1), None, nn.Identity)
    np.testing.assert_allclose(
        model.probabilities, [[1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))], [0.5, 0.5]], rtol=1e-6
    )


def test_a_class_without_test_samples_does_not_count() -> None:
    two = model_with([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1]], [0, 1])
    assert auc(two) == 1.0
