"""The model and the data: this is what to replace with your own.

As it stands, the clients share out handwritten digits that come with fedwcm: long-tailed, and each client
with a class mixture of its own, by its `partition-id`.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from torch import nn

import fedwcm


def model() -> nn.Module:
    """Return the model, from inputs to class scores. Its initial weights follow from the run's seed."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def client_data(node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the inputs and labels of one client, chosen by its node's config. Yours may read a local file."""
    division = digits(int(node_config.get("num-partitions", 10)), run_config["app.imbalance"])
    rows = division.rows[int(node_config["partition-id"])]
    return division.normalizer(division.dataset.x_train[rows]), division.dataset.y_train[rows]


def test_data(run_config: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return what the server tests the model on: equally many inputs of each class, normalised as theirs."""
    division = digits(imbalance=run_config["app.imbalance"])
    return division.normalizer(division.dataset.x_test), division.dataset.y_test


@cache
def digits(clients: int = 10, imbalance: float = 0.1) -> fedwcm.PartitionedData:
    """Return the digits with a long tail, divided among this many clients."""
    return fedwcm.partition(dataset="digits", imbalance=imbalance, clients=clients, beta=0.3)
