"""How long commands take, from the shell's point of view."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.environments import ROOT
from benchmarks.jobs import JOBS

FEDWCM = [sys.executable, "-m", "fedwcm"]
DEMO = [
    "compare",
    "--config",
    "configs/demo.toml",
    "--methods",
    "fedavg,fedcm,fedwcm,fedwcm+longtail",
    "--seeds",
    "0,1,2",
]
COMPARED_ROUNDS = 60


def measure(repetitions: int) -> dict[str, list[float]]:
    """Seconds of every command, each tried so often, in turn."""
    measured: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(repetitions):
        for name, seconds in COMMANDS.items():
            with tempfile.TemporaryDirectory() as folder:
                measured[name].append(round(seconds(Path(folder)), 4))
    return measured


def help_text(folder: Path) -> float:
    """`fedwcm --help`, until it ends."""
    return _seconds(["--help"], {})


def demo(folder: Path) -> float:
    """The demo, until its first round is recorded."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [*FEDWCM, *DEMO, "--out", str(folder / "demo")],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not any(path.stat().st_size for path in folder.glob("demo/runs/*/metrics.jsonl")):
            if process.poll() is not None:
                raise RuntimeError(f"the demo ended with exit code {process.returncode}")
            time.sleep(0.005)
        return time.perf_counter() - began
    finally:
        process.terminate()
        process.wait()


def one_run(folder: Path) -> float:
    """One run of J1 on one core."""
    options = ["--method", "fedavg", "--set", "run.workers=1", "--quiet", "--out", str(folder / "run")]
    return _seconds(["run", *options, *_job()], {"OMP_NUM_THREADS": "1"})


def two_runs(folder: Path) -> float:
    """Two such runs side by side."""
    options = ["--methods", "fedavg", "--seeds", "0,1", "--jobs", "2", "--quiet", "--out", str(folder / "runs")]
    return _seconds(["compare", *options, *_job()], {})


def _job() -> list[str]:
    settings = JOBS["J1"].settings() | {"run.rounds": COMPARED_ROUNDS, "run.eval_every": COMPARED_ROUNDS}
    given = {key: value for key, value in settings.items() if key != "run.seed" and value is not None}
    return [word for key, value in given.items() for word in ("--set", f"{key}={_toml(value)}")]


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _seconds(arguments: list[str], environment: dict[str, str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(
        [*FEDWCM, *arguments], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"fedwcm {arguments[0]} failed:\n{done.stderr.decode()}")
    return time.perf_counter() - began


COMMANDS: dict[str, Callable[[Path], float]] = {
    "help": help_text,
    "demo": demo,
    "one run": one_run,
    "two runs": two_runs,
}
