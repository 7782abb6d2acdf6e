"""Our methods as a strategy in an app of Flower's own kind."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import Result

from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.progress import Silent
from fedwcm.experiment.records import RoundRecord
from fedwcm.experiment.runner import Runner
from fedwcm.flower import Strategy
from fedwcm.flower.server.strategy import _note

from . import existing_app
from .federation import CLIENTS, model, simulated
from .test_resume import Killed, killed_in
from .wire import WireGrid

RUN_CONFIG = {"num-server-rounds": 2, "learning-rate": 0.05, "anything": "else"}

SETTINGS = {"flower.clients": CLIENTS, "flower.patience": 0.0, "run.seed": 11}


def test_an_existing_app_trains_as_the_simulator_does_from_its_own_weights() -> None:
    nodes = WireGrid(existing_app.app, RUN_CONFIG, CLIENTS)
    result = existing_app.main(nodes, RUN_CONFIG, **SETTINGS)
    plain = {"local.lr_decay": None, "local.schedule": "constant", "local.weight_decay": 0.0}
    options = {"run.rounds": 2, "local.clip": None, **plain}
    experiment = simulated("fedwcm", **options)
    torch.manual_seed(5)
    experiment.network.module.load_state_dict(model().state_dict())
    x, buffers = experiment.network.initial()
    expected = Runner(replace(experiment, x=x, buffers=buffers), None, Silent()).run()
    for name, tensor in result.arrays.to_torch_state_dict().items():
        assert torch.equal(tensor, expected.model[name]), name
    assert sorted(result.evaluate_metrics_serverapp) == [0, 1, 2]
    assert result.evaluate_metrics_serverapp[2]["accuracy"] == pytest.approx(expected.summary.final_accuracy)
    assert sorted(result.train_metrics_clientapp) == sorted(result.evaluate_metrics_clientapp) == [1, 2]
    assert 0 <= result.evaluate_metrics_clientapp[1]["recall"] <= 1


def test_a_continued_run_has_the_evaluations_of_all_its_rounds(tmp_path: Path) -> None:
    settings = {**SETTINGS, "flower.out": str(tmp_path), "participation.fraction": 1.0}
    nodes = WireGrid(existing_app.app, RUN_CONFIG, CLIENTS)
    killed_in(nodes, 2, client=3)
    with pytest.raises(Killed):
        existing_app.main(nodes, RUN_CONFIG, **settings)
    result = existing_app.main(WireGrid(existing_app.app, RUN_CONFIG, CLIENTS), RUN_CONFIG, **settings)
    whole = existing_app.main(
        WireGrid(existing_app.app, RUN_CONFIG, CLIENTS), RUN_CONFIG, **{**settings, "flower.out": ""}
    )
    assert list(result.evaluate_metrics_serverapp) == [0, 1, 2]
    assert result.evaluate_metrics_serverapp == whole.evaluate_metrics_serverapp
    assert list(result.evaluate_metrics_clientapp) == [1, 2]


@pytest.mark.parametrize("told", [{"loss": math.nan}, {"recall": [math.nan, 0.5]}, {"loss": -math.inf}])
def test_an_evaluation_that_is_not_finite_is_kept_as_it_is(told: dict[str, Any], tmp_path: Path) -> None:
    """JSON has no NaN: a class without test samples does not lose the run."""
    settings = {**SETTINGS, "flower.out": str(tmp_path), "local.epochs": 1}
    strategy = Strategy("fedavg", model=model, fraction_evaluate=0.0, settings=settings)
    result = strategy.start(
        WireGrid(existing_app.app, RUN_CONFIG, CLIENTS),
        ArrayRecord(model().state_dict()),
        num_rounds=2,
        evaluate_fn=lambda round_, arrays: MetricRecord(told),
    )
    assert [str(dict(metrics)) for metrics in result.evaluate_metrics_serverapp.values()] == [str(told)] * 3
    assert RunFolder(tmp_path).finished


def test_what_a_continued_run_has_recorded_as_none_was_not_finite() -> None:
    record = {"round": 1, "seconds": 1.0, "participants": 1, "bytes_down": 0, "bytes_up": 0}
    result = Result(arrays=ArrayRecord())
    _note(RoundRecord.from_json({**record, "server_loss": None, "server_recall": [None, 0.5]}, "a test"), result)
    assert str(dict(result.evaluate_metrics_serverapp[1])) == "{'loss': nan, 'recall': [nan, 0.5]}"


def test_a_key_of_the_train_config_that_means_nothing_is_named() -> None:
    strategy = Strategy("fedavg", model=model)
    with pytest.raises(ValueError, match="unknown key of the train config: 'learning_rate'"):
        strategy.start(
            WireGrid(existing_app.app, {}, 1),
            ArrayRecord(model().state_dict()),
            train_config=ConfigRecord({"learning_rate": 0.1}),
        )
