"""Backends: all agree, client state survives in each, trouble in a worker is told, none is left behind."""

import os
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedwcm.config.settings import from_settings
from fedwcm.engine.backends.plan import BLOCK_FLOATS, STACK_BELOW, choose
from fedwcm.engine.network import Network
from fedwcm.engine.options import ParticipationOptions
from fedwcm.experiment.build import build
from fedwcm.experiment.progress import Silent
from fedwcm.experiment.run import Run
from fedwcm.experiment.runner import Runner
from fedwcm.methods import METHODS
from fedwcm.methods.fedavg import FedAvg
from fedwcm.models import build_model

from ..factories import ENGINES, clusters, conv_batchnorm, linear, make_rounds, make_trainer, mlp, run_rounds
from ..records import timeless
from ..specimens import Counter, Failing

FOUR = ("fedavg", "fedcm", "fedwcm", "fedwcm-x")
ROUNDS = 4


def run_digits(method: str, backend: str) -> Run:
    """A few rounds on the digits: clients of unequal size, half of them a round, some of them silent."""
    settings: dict[str, object] = {
        "data.dataset": "digits",
        "partition.name": "fedgrab",
        "partition.clients": 12,
        "partition.beta": 0.5,
        "model.name": "mlp",
        "model.hidden": [16],
        "method.name": method,
        "local.epochs": 2,
        "local.batch_size": 16,
        "local.schedule": "exponential",
        "local.lr_decay": 0.9,
        "local.weight_decay": 1e-3,
        "local.clip": 5.0,
        "participation.fraction": 0.5,
        "participation.dropout": 0.2,
        "run.rounds": ROUNDS,
        "run.device": "cpu",
        "run.backend": backend,
        "run.workers": 2 if backend in ("auto", "parallel") else 0,
    }
    return Runner(build(from_settings(settings)), None, Silent()).run()


cached_run = cache(run_digits)


def numbers(finished: Run) -> list[dict[str, Any]]:
    """The history without its clock."""
    return timeless(finished.history)


@pytest.mark.parametrize("method", FOUR)
@pytest.mark.parametrize("backend", ["vectorized", "parallel"])
def test_all_backends_give_the_same_model_and_metrics_up_to_rounding(method: str, backend: str) -> None:
    expected, other = cached_run(method, "sequential"), cached_run(method, backend)
    assert other.summary.backend == backend
    for name, tensor in expected.model.items():
        torch.testing.assert_close(other.model[name], tensor, rtol=1e-4, atol=1e-5)
    assert len(expected.history) == ROUNDS
    for one, another in zip(numbers(expected), numbers(other), strict=True):
        assert one.keys() == another.keys()
        for key, value in one.items():
            # One test sample that sits on the border may fall either way.
            border = 0.02 if "accuracy" in key or key in ("macro_f1", "many", "medium", "few") else 1e-5
            if key != "per_class_accuracy":
                assert another[key] == pytest.approx(value, rel=1e-4, abs=border), key


@pytest.mark.parametrize("method", FOUR)
@pytest.mark.parametrize("module", [mlp, lambda: mlp(0.1)], ids=["stacked", "one by one"])
def test_processes_change_not_a_bit(method: str, module: Any) -> None:
    data = clusters()
    choice = choose("parallel", 2, Network(module()), 5)
    assert choice.stacked == (choice.block == 3)
    played = []
    for workers in (1, 2):
        training = make_trainer(METHODS[method](), data.federation, module(), stacked=choice.stacked)
        playing = make_rounds(training, data.federation, block=choice.block, workers=workers)
        played.append(run_rounds(playing, ROUNDS))
    for (one, record), (other, same) in zip(*played, strict=True):
        assert torch.equal(one.x, other.x)
        assert record == same


@pytest.mark.parametrize("backend", ENGINES)
def test_the_same_backend_twice_gives_identical_bits(backend: str) -> None:
    one, other = cached_run("fedwcm-x", backend), run_digits("fedwcm-x", backend)
    assert numbers(one) == numbers(other)
    assert all(torch.equal(tensor, other.model[name]) for name, tensor in one.model.items())


def test_methods_differ_so_that_agreement_means_something() -> None:
    losses = {cached_run(method, "sequential").history[-1].test_loss for method in FOUR}
    assert len(losses) == 4


# --- client state ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ENGINES)
def test_client_state_survives_from_round_to_round(backend: str) -> None:
    data, engine = clusters(), ENGINES[backend]
    training = make_trainer(Counter(), data.federation, linear(), stacked=engine.stacked)
    playing = make_rounds(
        training,
        data.federation,
        participation=ParticipationOptions(fraction=0.6),
        block=engine.block,
        workers=engine.workers,
    )
    visits = np.zeros(5)
    try:
        state = playing.start(*training.forward.network.initial())
        for round_ in range(6):
            ids = playing.participation.sample(5, training.seed, round_)
            visits[ids] += 1
            state, _ = playing.step(state)
            np.testing.assert_array_equal(playing.store.visited_clients(), np.flatnonzero(visits))
    finally:
        playing.backend.close()
    kept = playing.store.read(np.arange(5), torch.device("cpu"))
    assert len(set(visits)) > 1
    np.testing.assert_array_equal(kept["visits"][:, 0].numpy(), visits)
    steps = training.population.local_steps(data.federation.samples)
    np.testing.assert_array_equal(kept["steps"].numpy(), visits * steps)


# --- trouble -----------------------------------------------------------------------------------------


def test_closing_while_a_worker_is_busy_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    """As after Ctrl-C: the user sees one message, not a traceback from every worker."""
    data = clusters()
    training = make_trainer(Failing(client=2, seconds=0.3), data.federation, mlp())
    with pytest.raises(RuntimeError, match="client 2 cannot count"):
        run_rounds(make_rounds(training, data.federation, workers=2), 1)
    assert capfd.readouterr().err == ""


def test_closing_one_pool_does_not_wait_for_another() -> None:
    data = clusters()
    pools = [
        make_rounds(make_trainer(FedAvg(), data.federation, mlp()), data.federation, workers=2).backend
        for _ in range(2)
    ]
    began = time.perf_counter()
    for pool in pools:
        pool.close()
    assert time.perf_counter() - began < 3


ORPHANS = """
import multiprocessing
from tests.factories import clusters, make_rounds, make_trainer, mlp
from fedwcm.methods import METHODS
from fedwcm.methods.fedavg import FedAvg

data = clusters()
playing = make_rounds(make_trainer(FedAvg(), data.federation, mlp()), data.federation, workers=2)
state = playing.start(*playing.trainer.forward.network.initial())
print(*[worker.pid for worker in multiprocessing.active_children()], flush=True)
while True:
    state, _ = playing.step(state)
"""


def alive(pid: int) -> bool:
    """Whether a process exists and is not just waiting to be reaped."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see whether a process runs")
def test_killing_the_parent_leaves_no_worker_behind() -> None:
    root = Path(__file__).parents[2]
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=root
    )
    assert parent.stdout is not None
    with parent, parent.stdout:
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        time.sleep(0.2)
        assert len(workers) == 2
        assert all(map(alive, workers))
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(alive, workers))


# --- the choice --------------------------------------------------------------------------------------


def network(name: str, shape: tuple[int, ...] = (1, 8, 8), **options: Any) -> Network:
    return Network(build_model(name, shape, 10, 0, **options))


def chosen(model: Network, cohort: int = 10, workers: int = 2) -> str:
    return choose("auto", workers, model, cohort).name


def test_linear_stacks_are_always_stacked_and_spread_where_that_pays() -> None:
    small, large = network("mlp", hidden=[32]), network("mlp", hidden=[9000])
    assert chosen(small) == chosen(large, workers=1) == "vectorized"
    assert chosen(large) == "parallel"
    assert choose("auto", 2, large, 10).stacked
    assert choose("auto", 2, large, 10).block == 5
    assert not choose("auto", 2, large, 10).note  # about daemonic processes, of which this is none


def test_other_small_models_without_convolutions_are_stacked() -> None:
    small, large = (Network(nn.Sequential(nn.Linear(64, n), nn.LayerNorm(n), nn.Linear(n, 10))) for n in (32, 900))
    assert small.size < STACK_BELOW < large.size
    assert chosen(small) == "vectorized"
    assert chosen(large) == "parallel"
    assert not choose("auto", 2, large, 10).stacked


@pytest.mark.parametrize("cohort", [1, 7, 100, 1001])
def test_blocks_are_evenly_filled_and_bounded(cohort: int) -> None:
    model = network("mlp", hidden=[2000])
    block = choose("vectorized", 1, model, cohort).block
    assert block * model.size <= BLOCK_FLOATS
    blocks = -(-cohort // block)
    assert blocks * block - cohort < blocks
    assert blocks == -(-cohort // (BLOCK_FLOATS // model.size))


def test_convolutions_are_spread_over_several_cores_and_clients() -> None:
    conv = Network(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10)))
    assert conv.size < STACK_BELOW
    assert chosen(conv) == "parallel"
    assert choose("auto", 8, conv, 3).workers == 3
    assert chosen(conv, cohort=1) == chosen(conv, workers=1) == "sequential"


@pytest.mark.parametrize("module", [conv_batchnorm(), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), mlp(0.1)])
def test_models_with_batch_normalisation_or_dropout_are_never_stacked_by_themselves(module: nn.Module) -> None:
    assert chosen(Network(module)) == "parallel"
    assert chosen(Network(module), cohort=1) == "sequential"


@pytest.mark.parametrize(("module", "reason"), [(conv_batchnorm(), "running_mean"), (mlp(0.1), "dropout")])
def test_stacking_such_a_model_on_request_is_an_error_that_says_why(module: nn.Module, reason: str) -> None:
    model = Network(module)
    with pytest.raises(ValueError, match=f"cannot be stacked.*{reason}"):
        choose("vectorized", 0, model, 10).forward(model)


@pytest.mark.parametrize("name", ["sequential", "vectorized", "parallel"])
def test_a_named_backend_is_taken(name: Any) -> None:
    assert choose(name, 2, network("mlp", hidden=[8]), 10).name == name


def test_a_negative_number_of_workers_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"run.workers = -1"):
        choose("auto", -1, network("mlp", hidden=[8]), 10)
