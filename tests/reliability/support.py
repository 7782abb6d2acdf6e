"""Small runs to disturb: started in a forked process, so that one costs a moment, and compared bit for bit."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import sklearn.datasets  # noqa: F401 (what a forked process has, it need not import)
import torch
from safetensors.torch import load_file

import fedwcm.api
import fedwcm.comparison  # noqa: F401
from fedwcm.cli import main
from fedwcm.engine.backends.plan import can_fork

needs_fork = pytest.mark.skipif(not can_fork(), reason="needs fork")

DIGITS = [
    "--dataset",
    "digits",
    "--clients",
    "10",
    "--participation",
    "0.4",
    "--epochs",
    "1",
    "--batch-size",
    "10",
]


def forked(work: Callable[[], object]) -> BaseProcess:
    """Work in a process of its own; its exit status is what the work returns."""

    def do() -> None:
        torch.set_num_threads(1)
        code = work()
        os._exit(code if isinstance(code, int) else 0)

    process = multiprocessing.get_context("fork").Process(target=do)
    process.start()
    return process


def command(arguments: Sequence[str], log: Path | None = None) -> BaseProcess:
    """A command in a process of its own, what it says in a file."""

    def do() -> int:
        if log is not None:
            sys.stderr = log.open("a", buffering=1)
        return main(list(arguments))

    return forked(do)


def wait_until(holds: Callable[[], bool], process: BaseProcess, seconds: float = 60.0) -> bool:
    """Wait for something that the process does; False if it ended before."""
    deadline = time.monotonic() + seconds
    while not holds():
        if not process.is_alive():
            return False
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.001)
    return True


def lines(folder: Path) -> int:
    """Evaluated rounds that a run has written down."""
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def end(process: BaseProcess, number: int = signal.SIGKILL) -> int:
    """Send a signal; the exit code, which is negative for a process that a signal ended."""
    assert process.pid is not None
    os.kill(process.pid, number)
    return finish(process)


def finish(process: BaseProcess) -> int:
    """Wait for a process, not for what it has forked, as `join` would."""
    deadline = time.monotonic() + 120
    while process.exitcode is None:
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.005)
    return process.exitcode


def metrics(folder: Path) -> list[dict[str, object]]:
    """The history without its clock."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if "second" not in key} for record in records]


def assert_same_run(folder: Path, other: Path) -> None:
    """Bit for bit the same metrics and model."""
    assert metrics(folder) == metrics(other)
    one, two = (load_file(path / "model.safetensors") for path in (folder, other))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)


def run_in_namespace(script: str) -> "subprocess.CompletedProcess[str]":
    """A shell script with file systems of its own, which needs the right to mount; skipped without."""
    probe = subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
    )
    if probe.returncode:
        pytest.skip("mounting a small file system is not permitted here")
    return subprocess.run(["unshare", "-m", "sh", "-ec", script], capture_output=True, text=True, check=False)
