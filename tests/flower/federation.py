"""One small federation twice: in the simulator, and as nodes of a grid with the same data."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedwcm.config.settings import from_settings, method_settings, overlay
from fedwcm.data import load_dataset
from fedwcm.experiment.build import Experiment, build
from fedwcm.experiment.progress import Silent
from fedwcm.experiment.run import Run
from fedwcm.experiment.runner import Runner
from fedwcm.flower import client_app
from fedwcm.flower.app.options import read
from fedwcm.models.mlp import MLP
from fedwcm.teacher import Teacher

from .wire import WireGrid

CLIENTS, ROUNDS = 5, 3

TRAINING: dict[str, Any] = {
    "local.epochs": 1,
    "local.batch_size": 16,
    "local.lr": 0.05,
    "local.schedule": "exponential",
    "local.lr_decay": 0.9,
    "local.weight_decay": 1e-3,
    "local.clip": 5.0,
    "participation.fraction": 0.6,
    "run.rounds": ROUNDS,
    "run.seed": 11,
    "run.device": "cpu",
}

DIVISION: dict[str, Any] = {
    "data.dataset": "digits",
    "data.n_max": 60,
    "partition.name": "fedgrab",
    "partition.clients": CLIENTS,
    "partition.beta": 0.5,
    "model.name": "mlp",
    "model.hidden": [8],
    "run.backend": "sequential",
}

FEATURES = {"method.features": 4, "method.match_steps": 2, "method.retrain_epochs": 2}
SPECIAL: dict[str, dict[str, Any]] = {"creff": FEATURES, "clip2fl": FEATURES}
"""Options of methods whose defaults cost more than a test should."""


def model() -> nn.Module:
    """The model that the simulator builds for the digits."""
    return MLP((1, 8, 8), 10, hidden=(8,))


def simulated(method: str, **changes: Any) -> Experiment:
    """The simulator's experiment, with the bounds that Flower has by default."""
    chosen = method_settings(method)
    below = {**DIVISION, **TRAINING, **SPECIAL.get(method, {}), "method.name": chosen["method.name"], **changes}
    config = from_settings(overlay(below, chosen))
    bounds = {key: value for key, value in changes.items() if key.startswith("aggregation.")}
    return build(replace(config, aggregation=read(run_config(method, **bounds)).config.aggregation))


def in_simulator(method: str, **changes: Any) -> Run:
    """The simulator's run."""
    return Runner(simulated(method, **changes), None, Silent()).run()


@cache
def _division() -> Experiment:
    return simulated("fedavg")


def data(node_config: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """The samples of one client, as the simulator divides them."""
    shard = _division().rounds.federation.shard(int(node_config["partition-id"]) % CLIENTS)
    rows = torch.from_numpy(shard.rows)
    return shard.store.inputs[rows].numpy(), shard.labels, shard.store.sample_ids[rows]


def test_data() -> tuple[Any, Any]:
    """The test samples."""
    return _division().test.inputs, _division().test.labels


test_data.__test__ = False  # type: ignore[attr-defined]


def write_teacher(path: Path) -> None:
    """A teacher of the digits that knows nothing."""
    digits, rng = load_dataset("digits"), torch.Generator().manual_seed(0)
    logits, embeddings = torch.randn(len(digits.y_train), 10, generator=rng), torch.randn(10, 6, generator=rng)
    Teacher.of(digits, logits, embeddings).write(path)


def run_config(method: str, **changes: Any) -> dict[str, Any]:
    """The run-config of the same run on Flower."""
    own = {"method.name": method, "flower.clients": CLIENTS, "flower.patience": 0.0, "flower.bind_nodes": False}
    return {**TRAINING, **SPECIAL.get(method, {}), **own, **changes}


def grid(config: Mapping[str, Any], **node_config: Any) -> WireGrid:
    """Nodes for all clients."""
    return WireGrid(client_app(model=model, data=data), config, CLIENTS, node_config)
