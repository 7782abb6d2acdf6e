"""Small runs to disturb: started in a forked process, so that one costs a moment, and compared bit for bit."""

import ctypes
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

import fedwcm.api.training  # noqa: F401
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

NEW_MOUNTS = 0x00020000
"""CLONE_NEWNS of Linux."""
SKIPPED = 77


def forked(work: Callable[[], object]) -> BaseProcess:
    """Work in a process of its own; its exit status is what the work returns."""

    def do() -> None:
        torch.set_num_threads(1)
        code = work()
        os._exit(code if isinstance(code, int) else 0)

    process = multiprocessing.get_context("fork").Process(target=do)
    process.start()
    return process


def said_in(log: Path, arguments: Sequence[str]) -> int:
    """The exit status of a command in this process, what it says in a file."""
    sys.stderr = log.open("a", buffering=1)
    status = main(list(arguments))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a key that is pressed from here on is not the command's
    return status


def command(arguments: Sequence[str], log: Path = Path(os.devnull)) -> BaseProcess:
    """A command in a process of its own, what it says in a file."""
    return forked(lambda: said_in(log, arguments))


def wait_until(holds: Callable[[], bool], process: BaseProcess, seconds: float = 300.0) -> bool:
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
    deadline = time.monotonic() + 600
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
    names = sorted(path.name for path in other.glob("model*.safetensors"))
    assert sorted(path.name for path in folder.glob("model*.safetensors")) == names
    for name in names:
        one, two = (load_file(path / name) for path in (folder, other))
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one)


def mounted(work: Callable[[], object], *mounts: Sequence[str]) -> int:
    """The exit status of work in a process with mounts of its own, which need permission; skipped without."""

    def do() -> object:
        private = [["mount", "--make-rprivate", "/"], *(["mount", *mount] for mount in mounts)]
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "unshare") or libc.unshare(NEW_MOUNTS):
            return SKIPPED
        if any(subprocess.run(line, check=False, capture_output=True).returncode for line in private):
            return SKIPPED
        return work()

    status = finish(forked(do))
    if status == SKIPPED:
        pytest.skip("mounting a small file system is not permitted here")
    return status
