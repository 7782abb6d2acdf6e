"""Pairs of inputs and labels by the names of parts."""

import pytest
import torch
from torch.utils.data import TensorDataset

import fedwcm

from .objects import digits


@pytest.mark.parametrize("names", [("train", "test"), ("Training", "TESTING"), None])
def test_pairs_by_the_names_of_parts_are_parts_and_not_clients(names: tuple[str, str] | None) -> None:
    x, y = digits()
    pairs = (x[:300], y[:300]), (x[300:400], y[300:400])
    given = pairs if names is None else dict(zip(names, pairs, strict=True))
    division = fedwcm.partition(dataset=given, clients=4)
    assert len(division) == 4
    assert (len(division.dataset.y_train), len(division.dataset.y_test)) == (300, 100)


def test_pairs_by_names_without_one_to_train_on_are_refused() -> None:
    x, y = digits()
    with pytest.raises(ValueError, match="dataset has the parts 'val', 'test': it must have one called 'train'"):
        fedwcm.partition(dataset={"val": (x, y), "test": (x, y)})


def test_names_of_parts_beside_others_are_refused() -> None:
    x, y = digits()
    with pytest.raises(ValueError, match="'train', 'test', 'holdout': they must be 'train', 'val' and 'test', or"):
        fedwcm.partition(dataset={"train": (x, y), "test": (x, y), "holdout": (x, y)})


def test_torch_data_sets_by_the_names_of_parts() -> None:
    x, y = map(torch.from_numpy, digits())
    given = {"train": TensorDataset(x[:300], y[:300]), "test": TensorDataset(x[300:400], y[300:400])}
    division = fedwcm.partition(dataset=given, clients=4)
    assert (len(division.dataset.y_train), len(division.dataset.y_test)) == (300, 100)
