"""Our methods as a strategy in an app of Flower's own kind."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Result,
)

from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.progress import Silent
from fedwcm.experiment.records import RoundRecord
from fedwcm.experiment.runner import Runner
from fedwcm.flower import Strategy
from fedwcm.flower.server.strategy import _copy_record

from . import existing_app
from .federation import CLIENTS, finish, grid, model, simulated
from .test_resume import Killed, die
from .wire import WireGrid, strike

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
    nodes.mischief = strike(die, {3}, rounds={2})
    with pytest.raises(Killed):
        existing_app.main(nodes, RUN_CONFIG, **settings)
    result = existing_app.main(WireGrid(existing_app.app, RUN_CONFIG, CLIENTS), RUN_CONFIG, **settings)
    whole = existing_app.main(
        WireGrid(existing_app.app, RUN_CONFIG, CLIENTS), RUN_CONFIG, **{**settings, "flower.out": ""}
    )
    assert list(result.evaluate_metrics_serverapp) == [0, 1, 2]
    assert result.evaluate_metrics_serverapp == whole.evaluate_metrics_serverapp
    assert list(result.evaluate_metrics_clientapp) == [1, 2]


@pytest.mark.parametrize("own_values", [{"loss": math.nan}, {"recall": [math.nan, 0.5]}, {"loss": -math.inf}])
def test_an_evaluation_that_is_not_finite_is_kept_as_it_is(own_values: dict[str, Any], tmp_path: Path) -> None:
    """JSON has no NaN: a class without test samples does not lose the run."""
    settings = {**SETTINGS, "flower.out": str(tmp_path), "local.epochs": 1}
    strategy = Strategy("fedavg", model=model, fraction_evaluate=0.0, settings=settings)
    result = strategy.start(
        WireGrid(existing_app.app, RUN_CONFIG, CLIENTS),
        ArrayRecord(model().state_dict()),
        num_rounds=2,
        evaluate_fn=lambda round_, arrays: MetricRecord(own_values),
    )
    assert [str(dict(metrics)) for metrics in result.evaluate_metrics_serverapp.values()] == [str(own_values)] * 3
    assert RunFolder(tmp_path).finished


def test_what_a_continued_run_has_recorded_as_none_was_not_finite() -> None:
    record = {"round": 1, "seconds": 1.0, "participants": 1, "bytes_down": 0, "bytes_up": 0}
    result = Result(arrays=ArrayRecord())
    of_disk = RoundRecord.from_json({**record, "server_loss": None, "server_recall": [None, 0.5]}, "a test")
    _copy_record(of_disk, result)
    assert str(dict(result.evaluate_metrics_serverapp[1])) == "{'loss': nan, 'recall': [nan, 0.5]}"


def test_a_key_of_the_train_config_that_means_nothing_is_named() -> None:
    strategy = Strategy("fedavg", model=model)
    with pytest.raises(ValueError, match="unknown key of the train config: 'learning_rate'"):
        strategy.start(
            WireGrid(existing_app.app, {}, 1),
            ArrayRecord(model().state_dict()),
            train_config=ConfigRecord({"learning_rate": 0.1}),
        )


@pytest.mark.parametrize(
    "wrapper", [DifferentialPrivacyServerSideFixedClipping, DifferentialPrivacyClientSideFixedClipping]
)
def test_a_strategy_of_flower_s_around_it_is_refused_before_any_message(wrapper: Any) -> None:
    """Its clients would all fail, and the run would succeed with an untrained model."""
    nodes = WireGrid(existing_app.app, RUN_CONFIG, CLIENTS)
    wrapped = wrapper(
        Strategy("fedavg", model=model), noise_multiplier=1.0, clipping_norm=1.0, num_sampled_clients=2
    )
    with pytest.raises(NotImplementedError, match="runs its own rounds"):
        wrapped.start(nodes, ArrayRecord(model().state_dict()), num_rounds=1)
    assert not nodes.log


def test_what_flower_s_strategies_take_is_taken_or_refused() -> None:
    def worst(replies: list[RecordDict], key: str) -> MetricRecord:
        assert key == "num-examples"
        recalls: list[Any] = [next(iter(reply.metric_records.values()))["recall"] for reply in replies]
        return MetricRecord({"worst_recall": min(recalls), "evaluated": len(replies)})

    options: dict[str, Any] = {"fraction_evaluate": 0.2, "min_evaluate_nodes": 3, "min_available_nodes": CLIENTS}
    chosen: dict[str, Any] = {"model": model, **options, "evaluate_metrics_aggr_fn": worst}
    strategy = Strategy("fedavg", settings=SETTINGS, **chosen)
    arrays = ArrayRecord(model().state_dict())
    nodes, threshold = WireGrid(existing_app.app, RUN_CONFIG, CLIENTS), ConfigRecord({"threshold": 0.5})
    result = strategy.start(nodes, arrays, num_rounds=1, evaluate_config=threshold)
    assert result.evaluate_metrics_clientapp[1]["evaluated"] == 3
    assert "worst_recall" in result.evaluate_metrics_clientapp[1]
    weighted = Strategy("fedavg", model=model, weighted_by_key="patients", settings=SETTINGS)
    averaged = weighted.start(WireGrid(existing_app.app, {}, CLIENTS), arrays, 1, evaluate_config=threshold)
    assert "num-examples" in averaged.evaluate_metrics_clientapp[1], "a metric like any other"
    assert "patients" not in averaged.evaluate_metrics_clientapp[1]
    with pytest.raises(RuntimeError, match=r"4 clients connected within 0 s, flower.min_available = 5 are needed"):
        strategy.start(WireGrid(existing_app.app, RUN_CONFIG, CLIENTS - 1), arrays, num_rounds=1)
    with pytest.raises(ValueError, match="train_metrics_aggr_fn is not possible"):
        Strategy("fedavg", model=model, train_metrics_aggr_fn=worst)


def test_a_run_without_a_folder_says_before_round_1_that_its_model_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    finish(grid("fedavg", **{"run.rounds": 1}), evaluate=None)
    lines = [line for line in caplog.messages if "flower.out is not set" in line or line.startswith("round 1 ")]
    assert "flower.out is not set" in lines[0]
    assert lines[1].startswith("round 1 ")
    caplog.clear()
    strategy = Strategy("fedavg", model=model, fraction_evaluate=0.0, settings=SETTINGS)
    strategy.start(WireGrid(existing_app.app, {}, CLIENTS), ArrayRecord(model().state_dict()), num_rounds=1)
    assert "flower.out" not in caplog.text, "the app gets the model"
