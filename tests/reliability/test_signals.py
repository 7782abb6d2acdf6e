"""Ctrl-C, SIGTERM and SIGHUP save what was done and say how to go on, whenever they come, and however often."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import fedwcm
from fedwcm.cli import main
from fedwcm.engine.evaluate import evaluate
from fedwcm.experiment import checkpoint, evaluator, interrupts, runner
from fedwcm.experiment.interrupts import StoppedError

from .support import DIGITS, assert_same_run, command, end, finish, lines, needs_fork, wait_until

SMALL: Any = {
    "dataset": "digits",
    "clients": 6,
    "epochs": 1,
    "rounds": 6,
    "settings": {"run.checkpoint_every": 3, "run.workers": 1},
}


@needs_fork
@pytest.mark.parametrize(
    ("name", "backend"), [("SIGINT", "vectorized"), ("SIGTERM", "parallel"), ("SIGHUP", "vectorized")]
)
def test_a_signal_saves_the_last_round_and_says_how_to_go_on(name: str, backend: str, tmp_path: Path) -> None:
    number, out, log = getattr(signal, name), tmp_path / "run", tmp_path / "log"
    options = ["run", "--method", "scaffold", *DIGITS, "--backend", backend]
    options += ["--set", "run.workers=2"] if backend == "parallel" else []
    options += ["--set", "run.checkpoint_every=1000", "--rounds", "400", "--quiet"]
    process = command([*options, "--out", str(out)], log)
    assert wait_until(lambda: lines(out) >= 5, process)
    assert end(process, number) == 128 + number
    output = log.read_text()
    assert f"--out {out} --resume" in output
    assert "Traceback" not in output
    played = lines(out)
    assert 5 <= played < 400
    [saved] = (out / "checkpoints").glob("round-*")
    assert saved.name == f"round-{played:06d}.safetensors", "nothing is lost but the running round"


@needs_fork
def test_pressing_ctrl_c_again_and_again_ends_as_cleanly(tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    options = ["run", "--method", "scaffold", *DIGITS, "--rounds", "5000", "--backend", "parallel"]
    options += ["--set", "run.workers=2", "--set", "run.checkpoint_every=1000"]
    process = command([*options, "--out", str(out), "--quiet"], log)
    assert wait_until(lambda: lines(out) >= 3, process)
    while process.is_alive():
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.01)
    assert process.exitcode == 130
    assert "Traceback" not in log.read_text()
    assert f"--out {out} --resume" in log.read_text()
    [saved] = (out / "checkpoints").glob("round-*")
    assert saved.name == f"round-{lines(out):06d}.safetensors"


def test_ctrl_c_while_the_command_exits(tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ["run", "--method", "fedavg", *DIGITS, "--rounds", "5000", "--backend", "vectorized", "--quiet"]
    command_line = [sys.executable, "-m", "fedwcm", *options, "--out", str(out)]
    process = subprocess.Popen(command_line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while lines(out) < 3 and process.poll() is None:
        time.sleep(0.01)
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.001)
    assert process.stderr is not None
    assert process.returncode == 130
    assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_while_a_checkpoint_is_written(
    presses: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, save_file, saved = tmp_path / "run", checkpoint.save_file, []  # type: ignore[attr-defined]

    def interrupted(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
        saved.append(path)
        Path(path).write_bytes(b"half of it")
        for _ in range(presses):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        save_file(tensors, path, metadata=metadata)

    fedwcm.run("scaffold", out=tmp_path / "whole", **SMALL)
    monkeypatch.setattr(checkpoint, "save_file", interrupted)
    with interrupts.handled(), pytest.raises(StoppedError):
        fedwcm.run("scaffold", out=out, **SMALL)
    monkeypatch.undo()
    assert len(saved) == 1, "it was written to its end"
    assert [path.name for path in (out / "checkpoints").glob("round-*")] == ["round-000003.safetensors"]
    fedwcm.run("scaffold", out=out, resume=True, **SMALL)
    assert_same_run(out, tmp_path / "whole")


def test_a_signal_while_the_model_is_written_does_not_keep_the_run_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, write_model = tmp_path / "run", runner.write_model  # type: ignore[attr-defined]

    def interrupted(*arguments: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        write_model(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "write_model", interrupted)
    with interrupts.handled(), pytest.raises(KeyboardInterrupt):
        fedwcm.run("scaffold", out=out, **SMALL)
    assert (out / "summary.json").exists()
    assert fedwcm.load_model(out) is not None


def test_a_signal_during_the_evaluation_undoes_the_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients have the state of a round that the server is not going to count."""
    out, calls = tmp_path / "run", []

    def interrupted(*arguments: object) -> object:
        calls.append(1)
        if len(calls) == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(*arguments)  # type: ignore[arg-type]

    fedwcm.run("scaffold", out=tmp_path / "whole", **SMALL)
    monkeypatch.setattr(evaluator, "evaluate", interrupted)
    with interrupts.handled(), pytest.raises(StoppedError):
        fedwcm.run("scaffold", out=out, **SMALL)
    monkeypatch.undo()
    assert lines(out) == 4
    assert (out / "checkpoints" / "round-000004.safetensors").exists()
    fedwcm.run("scaffold", out=out, resume=True, **SMALL)
    assert_same_run(out, tmp_path / "whole")


@needs_fork
def test_a_comparison_of_several_jobs_is_stopped_and_goes_on(tmp_path: Path) -> None:
    out, log = tmp_path / "all", tmp_path / "log"
    options = ["compare", "--methods", "fedavg,scaffold", *DIGITS, "--jobs", "2", "--quiet", "--no-report"]
    options += ["--set", "run.checkpoint_every=1000", "--rounds", "40"]
    runs = [out / "runs" / f"{method}-seed0" for method in ("fedavg", "scaffold")]
    process = command([*options, "--out", str(out)], log)
    assert wait_until(lambda: all(lines(run) >= 3 for run in runs), process)
    assert end(process, signal.SIGTERM) == 128 + signal.SIGTERM
    assert "Traceback" not in log.read_text()
    for run in runs:
        assert (run / "checkpoints" / f"round-{lines(run):06d}.safetensors").exists()
    again = command([*options, "--out", str(out)], log)
    assert finish(again) == 0
    assert [lines(run) for run in runs] == [40, 40]


def test_a_signal_during_an_import_ends_a_command_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    code = "import fedwcm\nfrom fedwcm.experiment import interrupts\n"
    code += "with interrupts.handled(): fedwcm._import_quickly('interrupted')"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


def test_what_was_ignored_stays_ignored() -> None:
    before, terminated = signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.getsignal(signal.SIGTERM)
    try:
        with interrupts.handled():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGTERM) is not terminated
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.getsignal(signal.SIGTERM) is terminated


@needs_fork
def test_what_was_not_saved_is_not_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner.Runner, "_round", stop)
    assert main(["run", *DIGITS, "--rounds", "2", "--quiet", "--out", str(tmp_path / "run")]) == 130
    assert "stopped; no round was completed" in capsys.readouterr().err
