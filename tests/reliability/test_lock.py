"""One process at a time writes in a folder, and nobody has to tidy up after a crash."""

import os
import signal
import socket
import threading
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

import fedwcm
from fedwcm.cli import main
from fedwcm.experiment import lock
from fedwcm.experiment.files import StorageError
from fedwcm.experiment.lock import FolderInUseError, locked

from .support import DIGITS, command, end, forked, lines, needs_fork, wait_until

pytestmark = needs_fork


def hold(folder: Path, ready: Path, child: bool = False) -> None:
    """Hold a folder's lock for a long time, perhaps with a forked child that outlives its parent."""
    with locked(folder):
        if child and os.fork() == 0:
            time.sleep(3)
            os._exit(0)
        ready.touch()
        time.sleep(60)


def start_holder(tmp_path: Path, child: bool = False) -> tuple[Path, BaseProcess]:
    """Return a folder, and the process that holds its lock."""
    folder, ready = tmp_path / "run", tmp_path / "ready"
    holder = forked(lambda: hold(folder, ready, child))
    assert wait_until(ready.exists, holder)
    return folder, holder


def test_a_second_process_is_refused_with_the_name_of_the_first(tmp_path: Path) -> None:
    folder, holder = start_holder(tmp_path)
    with pytest.raises(FolderInUseError, match=f"process {holder.pid} on {socket.gethostname()}"), locked(folder):
        pass
    with pytest.raises(FolderInUseError):
        fedwcm.run("fedavg", dataset="digits", rounds=1, out=folder)
    assert main(["compare", "--methods", "fedavg", *DIGITS, "--rounds", "1", "--out", str(folder)]) == 2
    assert end(holder) == -signal.SIGKILL


def test_the_lock_ends_with_its_process_though_a_forked_child_lives_on(tmp_path: Path) -> None:
    folder, holder = start_holder(tmp_path, child=True)
    end(holder)
    assert (folder / lock.NAME).exists(), "the file stays, the lock does not"
    with locked(folder):
        pass


def test_within_a_process_too_and_nothing_is_left_behind(tmp_path: Path) -> None:
    with locked(tmp_path / "run"):
        with pytest.raises(FolderInUseError, match=f"process {os.getpid()}"), locked(tmp_path / "run"):
            pass
        with locked(tmp_path / "other"):
            pass
    assert list(tmp_path.iterdir()) == []


def test_whoever_waits_gets_the_lock_when_it_is_free(tmp_path: Path) -> None:
    folder, holder = start_holder(tmp_path)
    with pytest.raises(FolderInUseError), locked(folder, patience=0.1):
        pass
    threading.Timer(0.2, lambda: end(holder)).start()
    with locked(folder, patience=60.0):
        pass


def test_a_folder_that_its_holder_removes_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, really_open = [], os.open  # type: ignore[var-annotated]

    def open_late(path: Path, *options: int) -> int:
        if not opened:
            path.parent.rmdir()
        opened.append(path)
        return really_open(path, *options)

    monkeypatch.setattr(os, "open", open_late)
    with locked(tmp_path / "run"):
        assert len(opened) == 2


def test_two_runs_on_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    options = ["run", "--method", "fedwcm", *DIGITS, "--rounds", "5000", "--out", str(folder), "--quiet"]
    first = command(options)
    assert wait_until(lambda: lines(folder) > 2, first)
    assert main([*options, "--resume"]) == 2
    assert f"is in use by process {first.pid} on" in capsys.readouterr().err
    assert first.is_alive()
    end(first)
    second = command([*options, "--resume"])
    before = lines(folder)
    assert wait_until(lambda: lines(folder) > before, second), "a killed run keeps nobody out"
    end(second)
    rounds = [
        line.split(b'"round": ')[1].split(b",")[0] for line in (folder / "metrics.jsonl").read_bytes().splitlines()
    ]
    assert rounds == [str(number).encode() for number in range(1, len(rounds) + 1)]


def test_a_file_system_without_locks_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno
    import fcntl

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with pytest.warns(UserWarning, match="has no locks"), locked(tmp_path / "run"):
        pass


def test_a_link_in_place_of_the_lock_overwrites_nothing(tmp_path: Path) -> None:
    target, folder = tmp_path / "precious.txt", tmp_path / "run"
    target.write_text("precious")
    folder.mkdir()
    (folder / ".lock").symlink_to(target)
    with pytest.raises(StorageError, match="cannot be written"), locked(folder):
        pass
    assert target.read_text() == "precious"
