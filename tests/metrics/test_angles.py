"""Angles between a classifier's rows: known geometries, and which rows are those of rare classes."""

import numpy as np
import pytest
import torch

from fedwcm.engine.network import Network
from fedwcm.metrics.diagnostics import diagnosing, mean_angle
from fedwcm.models import build_model


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_rows_of_a_simplex_stand_as_far_apart_as_rows_can(classes: int) -> None:
    simplex = np.eye(classes) - 1 / classes
    assert mean_angle(simplex) == pytest.approx(np.degrees(np.arccos(-1 / (classes - 1))))


def test_orthogonal_rows_stand_at_90_degrees_and_collapsed_ones_at_0() -> None:
    lengths = np.array([[0.1], [1], [3], [1000]])
    assert mean_angle(np.eye(4) * lengths) == pytest.approx(90)
    assert mean_angle(np.ones((4, 7)) * lengths) == pytest.approx(0, abs=1e-5)
    assert mean_angle(np.array([[1.0, 2.0], [-1.0, -2.0]])) == pytest.approx(180)


def test_turning_all_rows_changes_no_angle() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(5, 8))
    turn, _ = np.linalg.qr(rng.normal(size=(8, 8)))
    assert mean_angle(rows @ turn) == pytest.approx(mean_angle(rows))


def test_without_a_pair_of_directions_there_is_no_angle() -> None:
    assert mean_angle(np.ones((1, 3))) is None
    assert mean_angle(np.zeros((0, 3))) is None
    assert mean_angle(np.array([[1.0, 0], [0, 0]])) is None
    assert mean_angle(np.array([[1.0, 0], [0, 0], [0, 2]])) == pytest.approx(90)


def test_minority_angle_is_that_of_the_classes_with_few_samples() -> None:
    network = Network(build_model("mlp", (4,), 4, 0, hidden=[]))
    assert network.head is not None
    network.head.weight.data = torch.tensor([[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 1.0, 1.0], [0, 0, 1.0, 1.0]])
    labels = torch.arange(4)
    with diagnosing(["concentration"], network, labels, np.array([1000, 900, 10, 10])) as record:
        network(torch.rand(4, 4))
    assert record["minority_angle"] == pytest.approx(0, abs=1e-5)
    assert record["classifier_angle"] == pytest.approx(90 * 5 / 6)
    with diagnosing(["concentration"], network, labels, np.array([5, 5, 5, 5])) as record:
        network(torch.rand(4, 4))
    assert record["minority_angle"] is None
    assert record["classifier_angle"] == pytest.approx(90 * 5 / 6)
