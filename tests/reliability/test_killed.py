"""`kill -9` at any moment: nothing is lost but what came after the last checkpoint, and resuming ends the same."""

import os
import random
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from fedwcm.engine import store

from .support import DIGITS, assert_same_run, command, end, finish, forked, lines, needs_fork, said_in, wait_until

pytestmark = needs_fork

Moment = Callable[[Path, BaseProcess, random.Random], bool]


def any_time(folder: Path, process: BaseProcess, rng: random.Random) -> bool:
    """A random moment: mostly after some rounds, sometimes on the way there."""
    before, more = lines(folder), rng.randint(0, 4)
    begun = wait_until(lambda: lines(folder) >= min(before, 1) + more, process)
    time.sleep(rng.uniform(0, 0.1))
    return begun and process.is_alive()


def while_saving(folder: Path, process: BaseProcess, rng: random.Random) -> bool:
    """A moment at which a checkpoint is being written."""
    for _ in range(rng.randint(1, 3)):
        if not wait_until(lambda: any(folder.glob("checkpoints/*.tmp")), process):
            return False
    return process.is_alive()


FSYNC = os.fsync


def slow_fsync(file: int) -> None:
    """A disk so slow that nobody misses when a checkpoint is written."""
    time.sleep(0.02)
    FSYNC(file)


def killed_again_and_again(
    start: Callable[[], BaseProcess], folder: Path, moment: Moment, times: int, seed: int
) -> int:
    """Start, kill, start again, …, and let the last one end; how often it was killed."""
    rng, kills = random.Random(seed), 0
    for _ in range(times):
        process = start()
        if not moment(folder, process, rng):
            finish(process)
            break
        end(process)
        kills += 1
    assert finish(start()) == 0
    return kills


def options(method: str, backend: str, rounds: int) -> list[str]:
    given = ["run", "--method", method, *DIGITS, "--backend", backend, "--rounds", str(rounds), "--quiet"]
    given += ["--val-fraction", "0.2", "--set", "run.checkpoint_every=2"]
    given += ["--set", "run.workers=2"] if backend == "parallel" else []
    return [*given, "--no-report", "--resume", "--out"]


def check(
    backend: str, method: str, moment: Moment, times: int, rounds: int, tmp_path: Path, on_disk: bool = False
) -> None:
    def start(folder: Path) -> BaseProcess:
        def do() -> int:
            store.IN_MEMORY = 0 if on_disk else store.IN_MEMORY  # in this forked process only
            os.fsync = slow_fsync if moment is while_saving else os.fsync  # type: ignore[assignment]
            return said_in(tmp_path / "log", [*options(method, backend, rounds), str(folder)])

        return forked(do)

    assert finish(start(tmp_path / "whole")) == 0
    kills = killed_again_and_again(lambda: start(tmp_path / "run"), tmp_path / "run", moment, times, seed=times)
    assert kills >= min(times, 2), "the run was over before it could be killed"
    assert_same_run(tmp_path / "run", tmp_path / "whole")


BACKENDS = ["sequential", "vectorized", "parallel"]


@pytest.mark.parametrize("backend", ["vectorized", "parallel"])
def test_a_few_kills_with_client_state_on_disk(backend: str, tmp_path: Path) -> None:
    check(backend, "scaffold", any_time, 2, 20, tmp_path, on_disk=True)


def test_a_few_kills_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    check("vectorized", "fedwcm", while_saving, 2, 20, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "moment", "on_disk"),
    [("fedwcm", any_time, False), ("scaffold", any_time, True), ("scaffold", while_saving, True)],
    ids=["random", "random, state on disk", "while saving, state on disk"],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_ten_kills_each(backend: str, method: str, moment: Moment, on_disk: bool, tmp_path: Path) -> None:
    check(backend, method, moment, 10, 80, tmp_path, on_disk)


def compare_killed(times: int, rounds: int, tmp_path: Path) -> None:
    given = ["compare", "--methods", "fedwcm,scaffold", *DIGITS, "--rounds", str(rounds), "--jobs", "2", "--quiet"]
    given += ["--no-report", "--set", "run.checkpoint_every=1", "--out"]
    assert finish(command([*given, str(tmp_path / "whole")])) == 0
    names = [f"runs/{method}-seed0" for method in ("fedwcm", "scaffold")]
    first = tmp_path / "all" / names[0]
    log = tmp_path / "log"
    kills = killed_again_and_again(
        lambda: command([*given, str(tmp_path / "all")], log), first, any_time, times, seed=1
    )
    assert kills >= 2, log.read_text()
    for name in names:
        assert lines(tmp_path / "all" / name) == rounds
        assert_same_run(tmp_path / "all" / name, tmp_path / "whole" / name)


def test_a_comparison_of_two_jobs_killed_a_few_times(tmp_path: Path) -> None:
    compare_killed(2, 20, tmp_path)


@pytest.mark.slow
def test_a_comparison_of_two_jobs_killed_thirty_times(tmp_path: Path) -> None:
    compare_killed(30, 200, tmp_path)
