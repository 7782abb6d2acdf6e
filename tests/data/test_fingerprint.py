"""Digests of data: other data has another one, and a seed changes none."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import TensorDataset

import fedwcm
from fedwcm.data import Dataset, load_dataset
from fedwcm.data.fingerprint import fingerprint

X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
Y = np.arange(60) % 3


def table() -> pd.DataFrame:
    """Columns whose encoding depends on the rows drawn for training: a gap to fill, and a category."""
    frame = pd.DataFrame(X, columns=list("abcd")).assign(label=Y, colour=np.where(Y, "red", "blue"))
    frame.loc[::7, "a"] = np.nan
    return frame


def sources(tmp_path: Path) -> dict[str, tuple[Any, dict[str, Any]]]:
    columns = {"label": "label", "impute": "median"}
    table().to_csv(tmp_path / "table.csv", index=False)
    np.savez(tmp_path / "arrays.npz", x=X, y=Y)
    return {
        "arrays": ((X, Y), {}),
        "tensors": (TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), {}),
        "clients": ({"one": (X[:30], Y[:30]), "two": (X[30:], Y[30:])}, {}),
        "frame": (table(), columns),
        "csv": (str(tmp_path / "table.csv"), columns),
        "npz": (str(tmp_path / "arrays.npz"), {}),
    }


@pytest.mark.parametrize("kind", ["arrays", "tensors", "clients", "frame", "csv", "npz"])
def test_a_seed_draws_another_test_part_of_the_same_source(kind: str, tmp_path: Path) -> None:
    source, options = sources(tmp_path)[kind]
    first, second = (load_dataset(source, seed=seed, **options) for seed in (0, 1))
    assert first.digest == second.digest != ""
    assert fingerprint(first) != fingerprint(second)


def test_one_changed_value_changes_the_digest() -> None:
    other, late = X.copy(), table()
    other[41, 2] += 1
    late.loc[41, "colour"] = "green"
    assert load_dataset((other, Y)).digest != load_dataset((X, Y)).digest
    assert load_dataset((X, Y[::-1].copy())).digest != load_dataset((X, Y)).digest
    columns: dict[str, Any] = {"label": "label", "impute": "median"}
    assert load_dataset(late, **columns).digest != load_dataset(table(), **columns).digest


def test_a_named_data_set_and_one_made_by_hand_have_none() -> None:
    assert load_dataset("digits").digest == ""
    assert Dataset("mine", X, Y, X, Y, ("a", "b", "c")).digest == ""


@pytest.mark.parametrize("clients", [4, np.arange(60) % 4])
def test_a_comparison_over_seeds_is_of_one_data_set(clients: Any, tmp_path: Path) -> None:
    methods = ["fedavg", "fedcm"]
    compared = fedwcm.compare(methods, [0, 1], tmp_path, dataset=(X, Y), clients=clients, rounds=1)
    rows = compared.table()
    assert dict(zip(rows["method"], rows["runs"], strict=True)) == {"fedavg": 2, "fedcm": 2}
