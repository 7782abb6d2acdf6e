"""Partitions by name: options that are missing, misspelt or out of range are named."""

from typing import Any

import numpy as np
import pytest

import fedwcm
from fedwcm.data.partition import PARTITIONS


def test_an_unknown_name_or_option_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown partition 'equl'.*'equal'.*pathological"):
        fedwcm.partition(dataset="digits", partition="equl")
    with pytest.raises(ValueError, match=r"'partition.class_per_client'.*'partition.classes_per_client'"):
        fedwcm.partition(dataset="digits", partition="pathological[class_per_client=2]")


@pytest.mark.parametrize(
    ("name", "options", "field"),
    [
        *[
            (name, {"clients": 0, "beta": 0.1}, "clients = 0")
            for name in ("equal", "equal-ipf", "fedgrab", "creff", "extended-dirichlet")
        ],
        *[
            (name, {"clients": 2, "beta": 0}, "beta = 0")
            for name in ("equal", "equal-ipf", "fedgrab", "creff", "extended-dirichlet")
        ],
        *[(name, {"clients": -1}, "clients = -1") for name in ("iid", "balancefl", "pathological")],
        ("iid", {"clients": 2.5}, "clients = 2.5"),
        ("iid", {"clients": True}, "clients = True"),
        ("equal", {"clients": 2, "beta": float("nan")}, "beta = nan"),
        ("equal", {"clients": 2, "beta": float("inf")}, "beta = inf"),
        ("equal", {"clients": 2, "beta": "0.1"}, "beta = '0.1'"),
        ("fedgrab", {"clients": 2, "beta": 1, "min_samples": 0}, "min_samples = 0"),
        ("balancefl", {"clients": 2, "tau_ratio": 0}, "tau_ratio = 0"),
        ("pathological", {"clients": 2, "classes_per_client": 0}, "classes_per_client = 0"),
        ("natural", {"client_ids": np.array([])}, "client_ids"),
        ("natural", {"client_ids": np.array([0.5])}, "client_ids"),
    ],
)
def test_value_that_is_not_allowed_is_named(name: str, options: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field} .*must be"):
        PARTITIONS[name](**options)


@pytest.mark.parametrize(("option", "value"), [("profile", "step"), ("n_max", 5)])
def test_options_of_a_long_tail_are_refused_without_one(option: str, value: object) -> None:
    own = np.zeros((40, 2), dtype=np.float32), np.tile(np.arange(2), 20)
    asked: dict[str, Any] = {"clients": 2, "beta": 1.0, "settings": {f"data.{option}": value}}
    with pytest.raises(ValueError, match=rf"data\.{option} = {value!r} is not allowed.*data\.imbalance"):
        fedwcm.partition(dataset=own, **asked)
    with pytest.raises(ValueError, match=rf"data\.{option} = {value!r} is not allowed"):
        fedwcm.partition(dataset="digits", imbalance="none", **asked)
    assert fedwcm.partition(dataset=own, imbalance=0.5, **asked).counts.sum() < 32
