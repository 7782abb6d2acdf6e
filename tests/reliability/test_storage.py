"""A full disk, a folder that cannot be written, a clock that jumps: nothing that was saved is lost."""

import errno
import itertools
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedwcm
from fedwcm.cli import main
from fedwcm.dashboard.follow import Watch
from fedwcm.engine import store as store_module
from fedwcm.engine.store import ClientStore
from fedwcm.experiment import checkpoint
from fedwcm.experiment.files import StorageError, replace_file, replacing

from .support import DIGITS, assert_same_run, command, finish, metrics, mounted, needs_fork, said_in

SMALL: Any = {
    "dataset": "digits",
    "clients": 6,
    "epochs": 1,
    "rounds": 6,
    "settings": {"run.checkpoint_every": 2, "run.workers": 1},
}


def test_a_disk_that_fills_up_ends_the_run_and_leaves_what_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fedwcm.run("scaffold", out=tmp_path / "whole", **SMALL)
    out, save_file = tmp_path / "run", checkpoint.save_file  # type: ignore[attr-defined]

    def full(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
        if '"round": 4' in metadata["fedwcm"][:12]:
            path.write_bytes(b"as much as there was room for")
            raise OSError(errno.ENOSPC, "No space left on device")
        save_file(tensors, path, metadata=metadata)

    monkeypatch.setattr(checkpoint, "save_file", full)
    options = ["--dataset", "digits", "--clients", "6", "--epochs", "1", "--rounds", "6", "--quiet"]
    options += ["--set", "run.checkpoint_every=2", "--set", "run.workers=1"]
    assert main(["run", "--method", "scaffold", *options, "--out", str(out)]) == 1
    output = capsys.readouterr().err
    assert "round-000004.safetensors cannot be written: No space left on device" in output
    assert "resume" in output
    assert [path.name for path in (out / "checkpoints").glob("round-*")] == ["round-000002.safetensors"]
    monkeypatch.undo()
    fedwcm.run("scaffold", out=out, resume=True, **SMALL)
    assert_same_run(out, tmp_path / "whole")


def test_a_file_that_cannot_be_replaced_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def write_half() -> None:
        with replacing(path) as draft:
            draft.write_text("ne")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StorageError, match="No space left"):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name != "posix", reason="folders are not synchronised elsewhere")
def test_a_power_loss_undoes_no_file_that_was_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content is on disk before the name points to it, the name before anybody relies on it."""
    output, fsync, replace = [], os.fsync, os.replace

    def synchronised(file: int) -> None:
        output.append("folder" if os.path.sameopenfile(file, folder) else "content")
        fsync(file)

    def renamed(draft: Path, path: Path) -> None:
        output.append("name")
        replace(draft, path)

    folder = os.open(tmp_path, os.O_RDONLY)
    monkeypatch.setattr(os, "fsync", synchronised)
    monkeypatch.setattr(os, "replace", renamed)
    replace_file(tmp_path / "file", "new")
    os.close(folder)
    assert output == ["content", "name", "folder"]
    assert (tmp_path / "file").read_text() == "new"


def test_a_full_disk_for_client_state_is_an_error_and_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, offset: int, size: int) -> None:
        if size > 5000:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store_module, "IN_MEMORY", 0)
    monkeypatch.setattr(os, "posix_fallocate", full)
    store = ClientStore(100, {"c": torch.zeros(1, 100)})
    store.write(np.arange(10), {"c": torch.ones(10, 100)})
    with pytest.raises(OSError, match=r"no room for the clients' state.*TMPDIR"):
        store.reserve(np.arange(50))
    assert store.visited_clients().tolist() == list(range(10))


@needs_fork
def test_a_small_disk_fills_up_and_is_made_larger(tmp_path: Path) -> None:
    disk, log = tmp_path / "disk", tmp_path / "log"
    disk.mkdir()
    options = ["run", "--method", "scaffold", *DIGITS, "--rounds", "20", "--set", "run.checkpoint_every=1"]
    options += ["--quiet", "--no-report", "--out"]

    def work() -> int:
        if said_in(log, [*options, str(disk / "run")]) != 1:
            return 9
        subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
        status = said_in(log, [*options, str(disk / "run"), "--resume"])
        shutil.copytree(disk / "run", tmp_path / "run")
        return status

    assert finish(command([*options, str(tmp_path / "whole")])) == 0
    assert mounted(work, ["-t", "tmpfs", "-o", "size=1100k", "tmpfs", str(disk)]) == 0, log.read_text()
    assert "cannot be written: " in log.read_text()
    assert "No space left on device" in log.read_text()
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@needs_fork
def test_a_read_only_folder_is_an_error_that_says_so(tmp_path: Path) -> None:
    folder, log = tmp_path / "folder", tmp_path / "log"
    folder.mkdir()
    options = ["run", *DIGITS, "--rounds", "1", "--quiet", "--out", str(folder / "run")]
    if os.geteuid() == 0:  # root may write anywhere but on a file system that is read-only
        status = mounted(lambda: said_in(log, options), ["-t", "tmpfs", "-o", "ro", "tmpfs", str(folder)])
    else:
        folder.chmod(0o555)
        status = finish(command(options, log))
    assert status == 1
    output = log.read_text()
    assert f"error: {folder}/run/.lock cannot be written: " in output
    assert "Read-only file system" in output or "Permission denied" in output


def test_a_clock_that_goes_backwards_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fedwcm.run("fedwcm", out=tmp_path / "whole", **SMALL)
    backwards = itertools.count(1e9, -3600)
    monkeypatch.setattr(time, "time", lambda: float(next(backwards)))
    result = fedwcm.run("fedwcm", out=tmp_path / "run", **SMALL)
    seconds = [record.seconds for record in result.history]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    [seen] = Watch([tmp_path / "run"]).look().runs
    assert seen.age == 0.0, "written in the future, as it seems"
