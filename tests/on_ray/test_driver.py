"""The command that drives a cluster is killed, stopped once or twice, or fails: it leaves nothing behind there."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ..reliability.support import DIGITS, assert_same_run, lines
from .conftest import wait_for

pytest.importorskip("ray", reason="needs fedwcm[ray]")

import ray
from ray._private.internal_api import memory_summary
from ray._private.state import actors

pytestmark = pytest.mark.slow
OPTIONS = ["--method", "scaffold", *DIGITS, "--backend", "ray", "--set", "run.workers=2", "--no-report", "--quiet"]
ROUNDS = 12
PATIENCE = 180.0


def start(arguments: Sequence[str], log: Path, address: str) -> subprocess.Popen[bytes]:
    """A command as a shell starts it, with a process group of its own."""
    environment = {**os.environ, "RAY_ADDRESS": address}
    with log.open("ab") as message:
        return subprocess.Popen(
            [sys.executable, "-m", "fedwcm", *arguments],
            env=environment,
            stdout=message,
            stderr=message,
            start_new_session=True,
        )


def run(out: Path, rounds: int = ROUNDS, resume: bool = False) -> list[str]:
    goes_on = ["--resume"] if resume else []
    own = ["--rounds", str(rounds), "--set", "run.checkpoint_every=4", "--out", str(out)]
    return ["run", *OPTIONS, *own, *goes_on]


def reached(out: Path, rounds: int) -> Callable[[], bool]:
    return lambda: lines(out) >= rounds


def nothing_is_left(seconds: float = PATIENCE) -> None:
    """No worker of the run lives, all cores are free, and the object store is empty."""
    wait_for(lambda: all(actor["State"] == "DEAD" for actor in actors().values()), seconds)
    wait_for(lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"], seconds)
    wait_for(lambda: "0 MiB, 0 objects" in memory_summary(stats_only=True), seconds)


@pytest.fixture(scope="module")
def whole(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happens to, after which nothing is left."""
    folder = tmp_path_factory.mktemp("whole")
    process = start(run(folder / "run"), folder / "log", cluster.address)
    assert process.wait(PATIENCE) == 0, (folder / "log").read_text()
    nothing_is_left()
    return folder / "run"


def goes_on(out: Path, log: Path, address: str, whole: Path) -> None:
    """Resume a run; it ends as one that was never disturbed."""
    assert start(run(out, resume=True), log, address).wait(PATIENCE) == 0, log.read_text()
    assert_same_run(out, whole)
    nothing_is_left()


def test_a_run_whose_driver_is_killed_leaves_nothing_and_goes_on(
    cluster: Any, whole: Path, tmp_path: Path
) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    process = start(run(out), log, cluster.address)
    wait_for(reached(out, 6), PATIENCE)
    process.kill()
    process.wait()
    nothing_is_left()
    assert lines(out) < ROUNDS
    goes_on(out, log, cluster.address, whole)


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_saves_the_last_round_and_leaves_nothing(
    presses: int, cluster: Any, whole: Path, tmp_path: Path
) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    process = start(run(out), log, cluster.address)
    wait_for(reached(out, 3), PATIENCE)
    for _ in range(presses):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        time.sleep(0.02)
    assert process.wait(PATIENCE) == 130
    assert "Traceback" not in log.read_text()
    assert f"--out {out} --resume" in log.read_text()
    assert (out / "checkpoints" / f"round-{lines(out):06d}.safetensors").exists()
    nothing_is_left()
    goes_on(out, log, cluster.address, whole)


def test_ctrl_c_ends_a_local_cluster_too(tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    process = start(run(out, rounds=5000), log, "local")
    wait_for(reached(out, 3), PATIENCE)
    os.killpg(process.pid, signal.SIGINT)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE) == 130, log.read_text()
    assert "Traceback" not in log.read_text()
    wait_for(lambda: not members(process.pid), PATIENCE)


def test_a_local_cluster_dies_with_its_driver(tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    process = start(run(out, rounds=5000), log, "local")
    wait_for(reached(out, 3), PATIENCE)
    process.kill()
    process.wait()
    wait_for(lambda: not members(process.pid), PATIENCE)


def members(session: int) -> list[int]:
    """The processes of a session that are still there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getsid(int(entry.name)) == session and "Z" not in state(entry):
                    found.append(int(entry.name))
            except (ProcessLookupError, FileNotFoundError):
                continue
    return found


def state(process: Path) -> str:
    return (process / "stat").read_text().rpartition(")")[2].split()[0]


def test_a_comparison_on_a_cluster_is_stopped_and_goes_on(cluster: Any, tmp_path: Path) -> None:
    out, log = tmp_path / "all", tmp_path / "log"
    options = ["compare", "--methods", "fedavg,scaffold", *DIGITS, "--rounds", "400", "--backend", "ray"]
    options += ["--set", "run.spread=runs", "--set", "run.checkpoint_every=1000", "--no-report"]
    runs = [out / "runs" / f"{method}-seed0" for method in ("fedavg", "scaffold")]
    process = start([*options, "--out", str(out)], log, cluster.address)
    wait_for(lambda: all(lines(run) >= 3 for run in runs), PATIENCE)
    os.killpg(process.pid, signal.SIGINT)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    assert "Traceback" not in log.read_text()
    assert "To resume, repeat the same command" in log.read_text()
    for folder in runs:
        assert 3 <= lines(folder) < 400
        assert (folder / "checkpoints" / f"round-{lines(folder):06d}.safetensors").exists()
    nothing_is_left()
    assert start([*options, "--out", str(out)], log, cluster.address).wait(PATIENCE) == 0
    assert [lines(run) for run in runs] == [400, 400]
    assert "scaffold, seed 0: accuracy" in log.read_text()
    nothing_is_left()
