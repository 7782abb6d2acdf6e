"""Data of the user's own as one pair of samples and labels for each client, and data without rows."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedwcm
from fedwcm.data import load_dataset

X = np.random.default_rng(0).normal(size=(60, 4))
Y = np.arange(60) % 3


def test_a_client_without_samples_is_dropped_with_a_warning() -> None:
    held = {"a": (X[:30], Y[:30]), "b": (X[:0], Y[:0]), "c": (X[30:], Y[30:]), "d": ([], [])}
    with pytest.warns(UserWarning, match=r"no sample of client 'b', 'd'; dropped as client"):
        data = load_dataset(held)
    assert data.client_names == ("a", "c")
    assert (data.x_train.dtype, data.classes) == (np.float32, ("0", "1", "2"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ((X[:20, :2], Y[:20]), r"samples of client 'b' have shape \(2,\), those of client 'a' \(4,\)"),
        ((X[:20], Y[:19]), r"client 'b' has 20 samples and labels of shape \(19,\): it must be \(20,\)"),
    ],
)
def test_clients_whose_arrays_do_not_fit_are_named(wrong: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_dataset({"a": (X, Y), "b": wrong, "c": (X, Y)})


@pytest.mark.parametrize("label", ["x", 1])
def test_a_table_without_rows_is_refused(label: object) -> None:
    frame = pd.DataFrame({"a": [1.0], "label": [label]})[:0]
    with pytest.raises(ValueError, match="DataFrame holds no rows"):
        load_dataset(frame, label="label")


def test_half_a_client_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"clients = 2\.5 is not allowed: it must be a whole number, or the client of"
    ):
        fedwcm.partition(dataset=(X, Y), clients=2.5)  # type: ignore[arg-type]


def test_the_largest_seed_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"run\.seed = 9\d+ is not allowed: it must be a whole number below 2\*\*63"
    ):
        fedwcm.partition(dataset=(X, Y), clients=2, seed=2**63)
