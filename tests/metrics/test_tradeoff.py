"""The curve of a model: its points are those of the shifted model, and its best is Bayes' rule."""

import numpy as np
import pytest
import torch

from fedwcm.engine.evaluate import CHUNK, measure
from fedwcm.metrics.classification import summarise
from fedwcm.metrics.tradeoff import DRAWN, STRENGTHS, trade_off

COUNTS = np.array([700, 250, 50])
SHARES = COUNTS / 1000


def posteriors(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples of three overlapping classes with these shares, and their exact log posteriors."""
    rng, means = np.random.default_rng(0), np.array([0.0, 1.5, 3.0])
    labels = rng.choice(3, size=rows, p=SHARES)
    x = means[labels] + rng.normal(size=rows)
    return torch.from_numpy(x[:, None] * means - means**2 / 2 + np.log(SHARES)), torch.from_numpy(labels)


def test_every_point_is_the_shifted_model() -> None:
    logits, labels = posteriors(1234)
    curve = trade_off(logits.split(CHUNK), labels, SHARES, COUNTS, strengths=DRAWN)
    for t, accuracy, balanced, few in zip(*vars(curve).values(), strict=True):
        moved = logits + t * torch.from_numpy(np.log(SHARES))
        metrics = summarise(measure(moved.split(CHUNK), labels, 3).confusion, COUNTS)
        assert (accuracy, balanced, few) == pytest.approx(
            (metrics.test_accuracy, metrics.balanced_accuracy, metrics.few)
        )


def test_of_exact_posteriors_bayes_rule_is_best() -> None:
    logits, labels = posteriors(50_000)
    curve = trade_off(logits.split(CHUNK), labels, SHARES, COUNTS)
    assert curve.strength == STRENGTHS
    assert curve.best("accuracy") == pytest.approx(0.0, abs=0.2)
    assert curve.best("balanced_accuracy") == pytest.approx(-1.0, abs=0.2)
    few = [value for value in curve.few if value is not None]
    assert few == sorted(few, reverse=True)  # the more t favours frequent classes, the less is left of the rare
