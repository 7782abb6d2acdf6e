"""One small federation twice: in the simulator, and as nodes of a grid with the same data."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedwcm.config.settings import from_settings, method_settings, overlay
from fedwcm.core.types import Ints
from fedwcm.data import load_dataset
from fedwcm.experiment.build import Experiment, build
from fedwcm.experiment.progress import Silent
from fedwcm.experiment.run import Run
from fedwcm.experiment.runner import Runner
from fedwcm.flower import client_app
from fedwcm.flower.app.options import read
from fedwcm.flower.server.deployment import serve
from fedwcm.models.mlp import MLP
from fedwcm.teacher import Teacher

from ..factories import Scripted
from .wire import WireGrid, honest

CLIENTS, ROUNDS = 5, 3
EVERYBODY = list(range(CLIENTS))
VICTIM = 1
"""The client to which something happens."""
OTHERS = [client for client in EVERYBODY if client != VICTIM]
FULL: dict[str, Any] = {"participation.fraction": 1.0}

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
    "data.server_fraction": 0.1,
    "partition.name": "fedgrab",
    "partition.clients": CLIENTS,
    "partition.beta": 0.5,
    "model.name": "mlp",
    "model.hidden": [8],
    "run.backend": "sequential",
}

FEATURES = {"method.features": 4, "method.match_steps": 2, "method.retrain_epochs": 2}
SPECIAL: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("creff", "clip2fl"), FEATURES),
    "fedic": {"method.distill_steps": 5},
}
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


def in_simulator(method: str, cohorts: Any = None, **changes: Any) -> Run:
    """The simulator's run; `cohorts` are the clients whose answers are used, round by round."""
    if cohorts is None:
        return Runner(simulated(method, **changes), None, Silent()).run()
    experiment = simulated(method, **{**FULL, **changes, "run.rounds": len(cohorts)})
    rounds = replace(experiment.rounds, participation=Scripted(cohorts))  # type: ignore[arg-type]
    return Runner(replace(experiment, rounds=rounds), None, Silent()).run()


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


def server_data() -> tuple[Any, Any]:
    """The server's own samples."""
    own = _division().rounds.own_data
    assert own is not None
    return own.inputs, own.labels


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


def grid(
    method: str,
    mischief: Any = honest,
    *,
    app: Any = None,
    clients: Any = CLIENTS,
    node: Any = None,
    **changes: Any,
) -> WireGrid:
    """Nodes for all clients of a run, with its run-config; `node` is what else each node's config says.

    What is not an option is `Any`, or mypy would take every `**{"run.rounds": 2}` for it.
    """
    app = client_app(model=model, data=data) if app is None else app
    return WireGrid(app, run_config(method, **changes), clients, node, mischief)


def finish(nodes: WireGrid, model: Any = model, evaluate: Any = test_data, **changes: Any) -> Run:
    """The server's run over these nodes, to its end."""
    finished = serve(nodes, {**nodes.run_config, **changes}, model, evaluate, server_data)
    assert finished is not None
    return finished


def on_flower(method: str, mischief: Any = honest, **changes: Any) -> Run:
    """The run of a federation in which this becomes of the answers."""
    return finish(grid(method, mischief, **changes))


def assert_same_model(one: Run, other: Run) -> None:
    """Equal to the bit."""
    for name, tensor in one.model.items():
        assert torch.equal(other.model[name], tensor), name


def counts_of(client: int) -> Ints:
    """The class counts of a client."""
    return np.bincount(data({"partition-id": client})[1], minlength=10)
