"""The same seed gives the same model on Flower as in the simulator, for everything that is registered."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedwcm.config.recipes import RECIPES
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.model_file import read_facts
from fedwcm.experiment.run import Run
from fedwcm.flower import client_app
from fedwcm.flower.server.deployment import serve
from fedwcm.losses import LOSSES
from fedwcm.methods import METHODS
from fedwcm.samplers import SAMPLERS
from fedwcm.teacher import TEACHER_FILE
from tests.records import timeless

from .federation import (
    FULL,
    assert_same_model,
    data,
    finish,
    grid,
    in_simulator,
    model,
    on_flower,
    simulated,
    write_teacher,
)


def assert_same(one: Run, other: Run) -> None:
    """Equal to the bit: the clients compute alone in both, and the sums have the same order."""
    assert {tensor.dtype for tensor in one.model.values()} <= {torch.float32, torch.int64}
    assert_same_model(one, other)
    for ours, theirs in zip(timeless(one.history), timeless(other.history), strict=True):
        common = {key: value for key, value in ours.items() if key not in OF_CLIENTS}
        assert common == {key: theirs[key] for key in common}


OF_CLIENTS = ("client_mean", "client_worst_decile", "client_std")
"""What clients reach with models of their own, which real ones keep to themselves."""


@pytest.fixture(scope="module", autouse=True)
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A teacher file where methods and losses that need one look for it."""
    folder = tmp_path_factory.mktemp("teacher")
    write_teacher(folder / TEACHER_FILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield


NEED_NORM = {"fedbn"}
"""Methods for models with layers that normalise: the model of most tests here has none."""


WITH_OPTIONS = {name for name, recipe in RECIPES.items() if str(recipe.settings).count("'method.") > 1}
"""Recipes that set options of their method; the others put together what is tried one by one."""
TWO_ROUNDS = {"run.rounds": 2}
"""With three of five clients in a round, one at least is in both."""


NAMES = {*METHODS, *WITH_OPTIONS, "mofedsam+wcm", "fedwcm[score=local]"} - NEED_NORM


@pytest.mark.parametrize("method", sorted(NAMES))
def test_every_method_gives_the_simulator_s_model(method: str) -> None:
    assert_same(in_simulator(method, **TWO_ROUNDS), on_flower(method, **TWO_ROUNDS))


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_every_loss_gives_the_simulator_s_model(loss: str) -> None:
    changes = {"loss.name": loss, **TWO_ROUNDS}
    assert_same(in_simulator("fedcm", **changes), on_flower("fedcm", **changes))


@pytest.mark.parametrize("sampler", sorted(SAMPLERS))
def test_every_sampler_gives_the_simulator_s_model(sampler: str) -> None:
    changes = {"sampler.name": sampler}
    assert_same(in_simulator("scaffold", **changes), on_flower("scaffold", **changes))


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("fedwcm-x", {"local.epochs": "none", "local.steps": 5, "local.momentum": 0.5, "local.nesterov": True}),
        ("fedprox", {"local.optimizer": "adam", "local.lr": 0.01}),
    ],
)
def test_other_local_training_gives_the_simulator_s_model(method: str, changes: dict[str, Any]) -> None:
    assert_same(in_simulator(method, **changes), on_flower(method, **changes))


def test_uploads_in_a_file_give_the_simulator_s_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedwcm.flower.server.backend.IN_MEMORY", 0)
    assert_same(in_simulator("fedwcm"), on_flower("fedwcm"))


def test_an_average_over_rounds_and_a_target_give_the_simulator_s_model() -> None:
    changes = {
        "server.ema": 0.8,
        "run.target": ",".join(["0.1"] * 8 + ["0.15", "0.05"]),
        "loss.name": "prior_ce",
        "loss.prior": "global",
    }
    averaged, plain = on_flower("fedwcm", **changes), on_flower("fedwcm", **{**changes, "server.ema": 0.0})
    assert_same(in_simulator("fedwcm", **changes), averaged)
    assert [record.last_round_accuracy for record in averaged.history] == [r.test_accuracy for r in plain.history]
    assert not torch.equal(averaged.model["head.weight"], plain.model["head.weight"])


@pytest.mark.parametrize("method", ["fedavg", "fedwcm+longtail"])
def test_the_model_file_knows_what_the_model_presupposes_as_in_the_simulator(method: str, tmp_path: Path) -> None:
    on_flower(method, **{"flower.out": str(tmp_path / "run"), "run.rounds": 1})
    assumed = read_facts(RunFolder(tmp_path / "run")).assumed
    assert assumed == pytest.approx(simulated(method).facts.assumed)


def test_another_seed_gives_another_model() -> None:
    one, other = on_flower("fedwcm"), on_flower("fedwcm", **{"run.seed": 12})
    assert not torch.equal(one.model["head.weight"], other.model["head.weight"])


def counting(hidden: Any = None) -> nn.Module:
    """A model with BatchNorm that averages over all batches it has counted."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8, momentum=None), nn.ReLU(), nn.Linear(8, 10)
    )


@pytest.mark.parametrize("method", ["fedavg", "fedsam", *NEED_NORM])
def test_counters_of_batch_norm_are_the_same_everywhere(method: str) -> None:
    """Integer buffers start anew with every client and round, whichever process trains it after which other."""
    changes = {"local.batch_size": 500, "local.epochs": 3, "run.rounds": 2}
    named = {**changes, "model.name": f"{__name__}:counting"}
    sequential = in_simulator(method, **named)
    parallel = in_simulator(method, **named, **{"run.backend": "parallel", "run.workers": 2})
    app = client_app(model=counting, data=data)
    flower = finish(grid(method, app=app, **changes), counting)
    for name, tensor in sequential.model.items():
        assert torch.equal(flower.model[name], tensor), name
        torch.testing.assert_close(parallel.model[name], tensor, msg=name)


def batch_norm() -> nn.Module:
    """A model that cannot train on one sample."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))


def test_a_last_batch_of_one_sample_is_left_out_as_in_the_simulator() -> None:
    samples = simulated("fedavg").rounds.federation.samples
    changes = {"local.batch_size": int(samples[0]) - 1, **FULL}
    finished = finish(grid("scaffold", app=client_app(model=batch_norm, data=data), **changes), batch_norm)
    own = {"model.name": f"{batch_norm.__module__}:batch_norm", "model.hidden": None}
    assert_same(in_simulator("scaffold", **changes, **own), finished)


def test_a_server_that_trains_is_given_data_of_its_own() -> None:
    nodes = grid("fedic")
    with pytest.raises(ValueError, match=r"'fedic' needs server_app\(server_data=…\)"):
        serve(nodes, nodes.run_config, model)
