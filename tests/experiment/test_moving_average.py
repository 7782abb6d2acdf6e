"""The moving average of the global model: what it is, that training ignores it, that resuming continues it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedwcm
from fedwcm.config.flags import config_from
from fedwcm.engine.options import ServerOptions
from fedwcm.engine.server import moving_average
from fedwcm.experiment.build import build
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.model_file import read_model
from fedwcm.methods.fedavg import FedAvg
from tests.experiment.test_checkpoint import SMALL, Interrupted, assert_same
from tests.factories import Scripted, clusters, make_rounds, make_trainer, mlp, run_rounds

EMA: dict[str, Any] = {**SMALL, "settings": {"run.checkpoint_every": 2, "server.ema": 0.8}}


def test_it_is_the_weighted_mean_of_the_rounds_without_the_initial_model() -> None:
    models = np.random.default_rng(0).normal(size=(6, 4))
    average: dict[str, torch.Tensor] = {}
    for t in range(1, 7):
        x = torch.from_numpy(models[t - 1])
        average = moving_average(average, x, 2.0 * x, 0.8)
        weights = 0.8 ** np.arange(t)[::-1]
        expected = weights @ models[:t] / weights.sum()
        np.testing.assert_allclose(average["x"].numpy(), expected, rtol=1e-12)
        np.testing.assert_allclose(average["buffers"].numpy(), 2.0 * expected, rtol=1e-12)


def test_training_is_the_same_and_the_plain_accuracy_is_recorded_beside(tmp_path: Path) -> None:
    plain, averaged = fedwcm.run("fedcm", **SMALL), fedwcm.run("fedcm", out=tmp_path / "run", **EMA)
    assert [r.last_round_accuracy for r in averaged.history] == [r.test_accuracy for r in plain.history]
    assert [r.last_round_few for r in averaged.history] == [r.few for r in plain.history]
    assert averaged.history[0].test_accuracy == plain.history[0].test_accuracy
    assert averaged.history[-1].test_accuracy != plain.history[-1].test_accuracy
    handed_over = read_model(RunFolder(tmp_path / "run"))
    assert all(torch.equal(handed_over[key], value) for key, value in averaged.model.state_dict().items())
    tested = fedwcm.evaluate(tmp_path / "run")
    assert tested.test_accuracy == averaged.history[-1].test_accuracy
    assert plain.history[-1].last_round_accuracy is None


def test_stopped_and_resumed_equals_never_stopped(tmp_path: Path) -> None:
    whole = fedwcm.run("scaffold", **EMA)
    with pytest.raises(KeyboardInterrupt):
        fedwcm.run("scaffold", out=tmp_path, progress=Interrupted(5), **EMA)
    assert_same(fedwcm.run("scaffold", out=tmp_path, resume=True, **EMA), whole)


def test_buffers_are_averaged_too() -> None:
    settings = {"server.ema": 0.8, "model.name": "resnet8", "model.width": 4, "model.norm": "batch"}
    experiment = build(config_from("fedavg", None, settings, dataset="digits", participation=0.02, epochs=1))
    rounds, models = experiment.rounds, []
    state = rounds.start(experiment.x, experiment.buffers)
    for _ in range(3):
        state, _ = rounds.step(state)
        models.append(torch.cat([state.x, state.buffers]))
    assert len(experiment.buffers)
    expected = (0.64 * models[0] + 0.8 * models[1] + models[2]) / 2.44
    torch.testing.assert_close(torch.cat(rounds.model(state)), expected)


def test_the_average_starts_with_the_first_round_that_is_answered() -> None:
    data = clusters()
    training = make_trainer(FedAvg(), data.federation, mlp())
    rounds = make_rounds(training, data.federation, participation=Scripted([[], [0, 1], [], [2]]))
    rounds = replace(rounds, server=ServerOptions(ema=0.8))
    (empty, _), (first, _), (same, _), (last, _) = run_rounds(rounds, 4)
    assert empty.average == {}
    torch.testing.assert_close(rounds.model(first)[0], first.x)
    torch.testing.assert_close(rounds.model(last)[0], (0.64 * first.x + 0.8 * same.x + last.x) / 2.44)
