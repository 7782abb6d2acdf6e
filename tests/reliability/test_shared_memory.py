"""Workers share memory that no small /dev/shm limits, or files, or say what to do."""

import errno
import os
from pathlib import Path

import pytest
import torch

from fedwcm.engine.backends import shared_memory
from fedwcm.engine.backends.shared_memory import Inbox, Outbox
from fedwcm.methods.fedavg import FedAvg

from ..factories import clusters, make_rounds, make_trainer, mlp, run_rounds
from .support import DIGITS, mounted, needs_fork, said_in


def refuse(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_is_written_is_read_and_grows_when_it_must() -> None:
    outbox, inbox = Outbox(), Inbox()
    for size in (3, 2, 500):
        state = {"x": torch.arange(float(size)), "n": torch.tensor([[size]]), "none": torch.zeros(0)}
        version = outbox.version
        layout = outbox.write(state)
        if outbox.version > version:
            inbox.attach(os.dup(outbox.file), outbox.size)
        read = inbox.read(layout)
        assert all(torch.equal(read[key], state[key]) for key in state)
    assert outbox.version == 2, "no new memory for less of it"
    outbox.close()


@needs_fork
def test_without_shared_memory_files_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    data = clusters()

    def played(workers: int) -> torch.Tensor:
        training = make_trainer(FedAvg(), data.federation, mlp())
        return run_rounds(make_rounds(training, data.federation, workers=workers), 3)[-1][0].x

    whole = played(1)
    monkeypatch.setattr(shared_memory, "_in_memory", refuse)
    assert torch.equal(played(2), whole)


def test_without_either_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_in_memory", refuse)
    monkeypatch.setattr(shared_memory, "_on_disk", refuse)
    with pytest.raises(OSError, match=r"1,024 bytes.*No space left.*TMPDIR.*--backend sequential"):
        Outbox().write({"x": torch.zeros(256)})


@needs_fork
def test_a_full_dev_shm_does_not_matter(tmp_path: Path) -> None:
    options = ["--method", "scaffold", *DIGITS, "--rounds", "2", "--backend", "parallel", "--set", "run.workers=2"]

    def run() -> int:
        Path("/dev/shm/full").write_bytes(bytes(60_000))
        return said_in(tmp_path / "log", ["run", *options, "--quiet", "--out", str(tmp_path / "run")])

    status = mounted(run, ["-t", "tmpfs", "-o", "size=64k", "tmpfs", "/dev/shm"])
    assert (status, (tmp_path / "log").read_text()) == (0, "")
    assert (tmp_path / "run" / "summary.json").exists()
