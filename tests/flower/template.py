"""The app that `fedwcm flower init` writes, and the simulator's run of the same."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from fedwcm.config.flags import config_from
from fedwcm.config.schema import Config
from fedwcm.experiment.build import build
from fedwcm.experiment.progress import Silent
from fedwcm.experiment.records import RoundRecord
from fedwcm.experiment.run import Run
from fedwcm.experiment.runner import Runner

from ..factories import Scripted

CLIENTS = 5
TOLERANCE: Any = {"rtol": 1e-5, "atol": 1e-6}
"""Float32 in another process, perhaps with other threads: equal up to the order of sums."""


def config(method: str, rounds: int, **changes: Any) -> Config:
    """The simulator's configuration of the app as it is written."""
    settings = {"model.name": "fedwcm.flower.template.fedwcm_app.task:model", "run.backend": "sequential"}
    flags: dict[str, Any] = {"epochs": 5, "batch_size": 10, "lr": 0.1, "participation": 1.0, "device": "cpu"}
    data: dict[str, Any] = {"dataset": "digits", "imbalance": 0.1, "clients": CLIENTS, "beta": 0.3}
    return config_from(method, settings=settings, rounds=rounds, **{**flags, **data, **changes})


def in_simulator(method: str, cohorts: Sequence[Sequence[int]], **changes: Any) -> Run:
    """The simulator's run in which these clients answer, round by round."""
    experiment = build(config(method, len(cohorts), **changes))
    rounds = replace(experiment.rounds, participation=Scripted(cohorts))  # type: ignore[arg-type]
    return Runner(replace(experiment, rounds=rounds), None, Silent()).run()


def cohorts_of(history: Sequence[RoundRecord], clients: int = CLIENTS) -> list[list[int]]:
    """Who answered in each round of a run on Flower."""
    return [[k for k in range(clients) if str(k) not in (record.left_out or {})] for record in history]


def assert_model_of(folder: Path, expected: Run) -> None:
    """The model in a run's folder is the simulator's."""
    for name, tensor in load_file(folder / "model.safetensors").items():
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor, expected.model[name], **TOLERANCE)
