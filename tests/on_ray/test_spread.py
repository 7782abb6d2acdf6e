"""Whole runs on a cluster: the rule that spreads them, and runs that are those of one process."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

import fedwcm
from fedwcm.api.arguments import MethodLike
from fedwcm.config.schema import RunOptions
from fedwcm.core.types import Context, Report, State, Vec
from fedwcm.methods import METHODS

from ..reliability.support import assert_same_run, lines, metrics
from .conftest import wait_for

pytest.importorskip("ray", reason="needs fedwcm[ray]")

import ray

from fedwcm.sweeps import runs_on_cluster
from fedwcm.sweeps.runs_on_cluster import _contents, _Sending, _write, spreads_runs

ROUNDS = 8
LARGE = 2**30
FedAvg: Any = METHODS["fedavg"]


@pytest.mark.parametrize(
    ("spread", "runs", "size", "expected"),
    [
        ("auto", 4, LARGE, True),
        ("auto", 3, LARGE, False),
        ("auto", 1, 1000, True),
        ("runs", 1, LARGE, True),
        ("clients", 9, 1000, False),
    ],
)
def test_runs_are_spread_if_there_are_many_or_they_are_small(
    spread: Any, runs: int, size: int, expected: bool
) -> None:
    assert spreads_runs(RunOptions(workers=4, spread=spread), runs, size) is expected


def test_a_cluster_and_jobs_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"jobs = 2 is not allowed: it must be 1 with the backend 'ray'"):
        fedwcm.compare(["fedavg"], [0], tmp_path / "all", dataset="digits", backend="ray", jobs=2)


def test_files_travel_when_they_change_and_when_they_go(tmp_path: Path) -> None:
    there, here, sent = tmp_path / "there", tmp_path / "here", list[Any]()
    _write(there, {"config.toml": b"old", "checkpoints/one": b"1"})
    with _Sending(there, sent.append):
        (there / "metrics.jsonl").write_text("{}\n")
        (there / "checkpoints" / "one").unlink()
        (there / "checkpoints" / "two").write_bytes(b"22")
        (there / "draft.tmp").touch()
        (there / ".lock").touch()
    _write(here, {"checkpoints/one": b"1"})
    for files in sent:
        assert "config.toml" not in files
        _write(here, files)
    assert _contents(here) == {"metrics.jsonl": b"{}\n", "checkpoints/two": b"22"}


def test_the_summary_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = list[str]()
    monkeypatch.setattr(runs_on_cluster, "replace_file", lambda path, _: written.append(path.name))
    _write(tmp_path, {"summary.json": b"", "model.safetensors": b"", "a": b""})
    assert written[-1] == "summary.json"


def disturbed(mark: Path) -> MethodLike:
    """FedAvg whose process is killed in round 5, unless there is a mark already."""

    class Disturbed(FedAvg):  # type: ignore[misc]
        def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
            if ctx.round == 4 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().finish(w, c, ctx)

    return Disturbed


class Slow(FedAvg):  # type: ignore[misc]
    """FedAvg whose clients take their time."""

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        time.sleep(1.0)
        return super().finish(w, c, ctx)


def data(seed: int = 0) -> tuple[Any, Any]:
    """Samples that are passed as objects, and so have to travel."""
    rng = np.random.default_rng(seed)
    labels = np.arange(300) % 3
    return rng.normal(size=(300, 5)).astype(np.float32) + labels[:, None], labels


def compare(out: Path, methods: list[MethodLike], seeds: list[int], backend: str, **options: Any) -> None:
    settings = {"run.checkpoint_every": 3, **options.pop("settings", {})}
    fedwcm.compare(  # type: ignore[call-overload]
        methods,
        seeds,
        out,
        dataset=data(),
        clients=6,
        rounds=ROUNDS,
        epochs=1,
        backend=backend,
        settings=settings,
        report=False,
        **options,
    )


def same_runs(one: Path, other: Path) -> None:
    names = sorted(path.name for path in (one / "runs").iterdir())
    assert names == sorted(path.name for path in (other / "runs").iterdir())
    for name in names:
        assert_same_run(one / "runs" / name, other / "runs" / name)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Makes workers believe that they do not see the folders of the comparison."""

    def choose(seen: bool) -> None:
        if not seen:
            monkeypatch.setattr(runs_on_cluster._Runs, "_mark", lambda *_: None)

    return choose


@pytest.mark.slow
@pytest.mark.parametrize("seen", [True, False], ids=["shared folder", "folder travels"])
def test_runs_on_a_cluster_are_those_of_processes_here(
    seen: bool, shared: Callable[[bool], None], cluster: Any, tmp_path: Path
) -> None:
    shared(seen)
    compare(tmp_path / "away", ["fedavg", "scaffold"], [0, 1], "ray", settings={"run.spread": "runs"})
    compare(tmp_path / "here", ["fedavg", "scaffold"], [0, 1], "auto", jobs=2)
    same_runs(tmp_path / "away", tmp_path / "here")
    assert not [path for path in (tmp_path / "away" / "runs").iterdir() if path.is_file()]


@pytest.mark.slow
def test_clients_of_one_run_at_a_time_use_the_same_cluster(cluster: Any, tmp_path: Path) -> None:
    compare(tmp_path / "away", ["scaffold"], [0, 1], "ray", settings={"run.spread": "clients", "run.workers": 2})
    compare(tmp_path / "here", ["scaffold"], [0, 1], "vectorized")
    for seed in (0, 1):
        one, two = (metrics(tmp_path / place / "runs" / f"scaffold-seed{seed}") for place in ("away", "here"))
        for record, other in zip(one, two, strict=True):
            assert record["test_accuracy"] == pytest.approx(other["test_accuracy"], abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("seen", [True, False], ids=["shared folder", "folder travels"])
def test_a_run_whose_worker_is_killed_goes_on_elsewhere(
    seen: bool,
    shared: Callable[[bool], None],
    cluster: Any,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    shared(seen)
    method = disturbed(tmp_path / "mark")
    compare(tmp_path / "away", [method], [0], "ray", settings={"run.spread": "runs"})
    assert "a worker was lost" in capfd.readouterr().err
    compare(tmp_path / "here", [method], [0], "sequential")
    same_runs(tmp_path / "away", tmp_path / "here")


@pytest.mark.slow
@pytest.mark.parametrize("seen", [True, False], ids=["shared folder", "folder travels"])
def test_a_comparison_that_is_stopped_saves_its_runs_and_goes_on(
    seen: bool, shared: Callable[[bool], None], cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared(seen)
    out, step = tmp_path / "away", runs_on_cluster._Runs.step
    runs = [out / "runs" / f"Slow-seed{seed}" for seed in (0, 1)]

    def interrupted(self: Any) -> bool:
        if any(lines(run) >= 2 for run in runs):
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(runs_on_cluster._Runs, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare(out, [Slow], [0, 1], "ray", settings={"run.spread": "runs", "run.checkpoint_every": 100})
    monkeypatch.setattr(runs_on_cluster._Runs, "step", step)
    begun = [run for run in runs if lines(run)]
    assert begun
    for run in begun:
        assert lines(run) < ROUNDS
        assert (run / "checkpoints" / f"round-{lines(run):06d}.safetensors").exists()
    wait_for(lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"])
    compare(out, [Slow], [0, 1], "ray", settings={"run.spread": "runs", "run.checkpoint_every": 100})
    compare(tmp_path / "here", [Slow], [0, 1], "sequential")
    same_runs(out, tmp_path / "here")


@pytest.mark.slow
def test_what_is_wrong_with_a_run_is_said_and_the_others_stop(
    cluster: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from fedwcm.engine.backends.errors import WorkerError

    class Wrong(FedAvg):  # type: ignore[misc]
        def finish(self, w: Vec, c: State, ctx: Context) -> Any:
            raise ValueError("this client cannot count")

    with pytest.raises(WorkerError, match=r"Wrong, seed 0: the run in .* failed; see the error above"):
        compare(tmp_path / "away", [Wrong, "fedavg"], [0], "ray", settings={"run.spread": "runs"})
    assert "error: Wrong, seed 0: this client cannot count" in capfd.readouterr().err
    wait_for(lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"])


@pytest.mark.slow
def test_trials_of_a_search_are_those_of_one_process(cluster: Any, tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="needs fedwcm[tune]")
    common: dict[str, Any] = {"dataset": data(), "clients": 6, "rounds": 2, "epochs": 1, "trials": 3}
    search = {"lr": [0.01, 0.1, 0.3]}
    away = fedwcm.tune(["fedavg"], search, tmp_path / "away", backend="ray", **common)
    here = fedwcm.tune(["fedavg"], search, tmp_path / "here", backend="sequential", **common)
    found = [
        {repr(trial.params): trial.user_attrs["val_balanced_accuracy"] for trial in result.trials["fedavg"]}
        for result in (away, here)
    ]
    assert len(away.trials["fedavg"]) == 3
    for params in found[0].keys() & found[1].keys():
        assert found[0][params] == pytest.approx(found[1][params], abs=0.02)


@pytest.mark.slow
def test_a_search_that_is_stopped_gives_its_trials_back(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna", reason="needs fedwcm[tune]")
    from fedwcm.sweeps.tuning import on_cluster

    step = on_cluster._Trials.step

    def interrupted(self: Any) -> bool:
        if len(self._going) == 2:
            raise KeyboardInterrupt
        return step(self)

    common: dict[str, Any] = {"dataset": data(), "clients": 6, "rounds": 2, "epochs": 1, "trials": 3}
    common |= {"backend": "ray", "settings": {"run.spread": "runs"}}
    monkeypatch.setattr(on_cluster._Trials, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fedwcm.tune(["fedavg"], {"lr": [0.01, 0.1, 0.3]}, tmp_path / "away", **common)
    monkeypatch.setattr(on_cluster._Trials, "step", step)
    found = fedwcm.tune(["fedavg"], {"lr": [0.01, 0.1, 0.3]}, tmp_path / "away", **common)
    assert len(found.trials["fedavg"]) == 3


class Fatal(nn.Linear):
    """Kills the first process that uses it, but for the one that made it."""

    def __init__(self, mark: Path) -> None:
        super().__init__(5, 3)
        self.mark, self.maker = mark, os.getpid()

    def forward(self, x: Tensor) -> Tensor:
        if os.getpid() != self.maker and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


@pytest.mark.slow
def test_a_trial_whose_worker_is_killed_is_tried_again_though_no_other_is_running(
    cluster: Any, tmp_path: Path
) -> None:
    pytest.importorskip("optuna", reason="needs fedwcm[tune]")
    options: dict[str, Any] = {"dataset": data(), "clients": 6, "rounds": 2, "epochs": 1, "trials": 1}
    options |= {"backend": "ray", "settings": {"run.spread": "runs"}, "model": Fatal(tmp_path / "mark")}
    found = fedwcm.tune(["fedavg"], {"lr": [0.1]}, tmp_path / "away", **options)
    assert (tmp_path / "mark").exists()
    assert len(found.trials["fedavg"]) == 1
