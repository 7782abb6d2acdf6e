"""The commands, run as a user runs them."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedwcm
from fedwcm.cli import main
from fedwcm.cli.listing import LISTS

SMALL = ["--dataset", "digits", "--clients", "10", "--participation", "0.5", "--epochs", "1", "--batch-size", "10"]


def test_run_writes_its_folder_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    command = ["run", "--method", "fedwcm", *SMALL, "--rounds", "3", "--out", str(out)]
    assert main(command) == 0
    output = capsys.readouterr().out
    assert "final accuracy" in output
    assert re.search(r"readings of the paper: .*alpha_rule=local.*reading-the-paper\.md", output)
    assert str(out) in output
    assert {path.name for path in out.iterdir()} == {
        "config.toml",
        "metrics.jsonl",
        "summary.json",
        "model.safetensors",
        "environment.json",
        "partition.json",
        "report.html",
        "checkpoints",
    }
    keys = {"method", "dataset", "final_accuracy", "best_accuracy", "few", "rounds", "seconds_per_round"}
    assert keys <= json.loads((out / "summary.json").read_text()).keys()
    assert main([*command, "--resume"]) == 0
    assert "finished already" in capsys.readouterr().err


def test_quiet_says_nothing_but_the_warning_of_a_gain_above_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # 585 samples on 45 clients: 13 each, so two steps of 10 where 1.3 are divided by.
    options = ["--dataset", "digits", "--clients", "45", "--epochs", "1", "--batch-size", "10", "--rounds", "1"]
    assert main(["run", "--method", "fedcm-nominal", *options, "--out", str(tmp_path / "a"), "--quiet"]) == 0
    output = capsys.readouterr()
    assert output.out == ""
    assert "gain of 1." in output.err
    assert "method.momentum_norm=exact" in output.err
    assert main(["run", "--method", "fedcm", *options, "--out", str(tmp_path / "b"), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "fedwmc"], "Did you mean 'fedwcm'"),
        (["--method", "fedcm[alhpa=0.2]"], "Did you mean 'method.alpha'"),
        (["--method", "fedcm[alpha=2]"], "alpha = 2.0 is not allowed"),
        (["--set", "method.q=on"], "method.q"),
        (["--dataset", "no-such-file.csv"], "no-such-file.csv"),
        (["--model", "mpl"], "mlp"),
        (["--partition", "equall"], "Did you mean 'equal'"),
        (["--sampling", "bernouli"], "Did you mean 'bernoulli'"),
        (["--partition", "iid", "--beta", "0.5"], "beta"),
        (["--device", "gpu"], "--device gpu"),
        (["--clients", "many"], "clients"),
    ],
)
def test_a_wrong_request_ends_with_2_and_one_error(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--rounds", "1", "--out", str(tmp_path / "run"), *arguments]) == 2
    *before, error = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ")
    assert message in error
    assert len(before) <= 1, "more than what was asked for"


def test_diverged_run_ends_with_1_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [*SMALL, "--rounds", "9", "--lr", "1e18", "--out", str(tmp_path / "run"), "--quiet"]
    assert main(["run", "--method", "fedavg", *options]) == 1
    assert "updates have a NaN or an infinity" in capsys.readouterr().err


def test_compare_tabulates_every_method_and_seed_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "c"
    command = ["compare", "--methods", "fedavg,fedcm[alpha=0.2]", "--seeds", "0,1", *SMALL]
    command += ["--rounds", "2", "--grid", "local.lr=0.05,0.1", "--out", str(out), "--quiet"]
    assert main(command) == 0
    table = capsys.readouterr().out
    assert table.count("±") > 0
    assert "fedcm[alpha=0.2]" in table
    assert "local.lr" in table
    assert len(list((out / "runs").iterdir())) == 2 * 2 * 2
    assert (out / "table.csv").read_text().count("\n") == 1 + 4
    assert "fedcm[alpha=0.2]" in (out / "report.md").read_text()
    assert str(out / "report.html") in table
    before = {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")}
    assert main(command) == 0
    assert {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")} == before
    assert main([*command, "--rounds", "1"]) == 2
    assert "run.rounds: 2 is now 1" in capsys.readouterr().err


def test_a_comparison_of_other_seeds_says_which_runs_stay_beside_its_table(tmp_path: Path) -> None:
    options: dict[str, Any] = {"dataset": "digits", "clients": 4, "rounds": 1, "epochs": 1, "report": False}
    fedwcm.compare(["fedavg"], [0, 1], tmp_path, **options)
    with pytest.warns(UserWarning, match="2 other runs in .* are not in its table any more: fedavg-seed0"):
        fedwcm.compare(["fedavg"], [2], tmp_path, **options)
    with pytest.raises(FileNotFoundError, match=r"no finished run.*there are runs below it: .*fedavg-seed2"):
        fedwcm.predict(tmp_path, np.zeros((1, 64)))


@pytest.mark.parametrize("device", ["mps:9", "cuda:99", "meta"])
def test_a_device_that_is_not_there_is_refused_before_data_is_read(
    device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--device", device, "--dataset", "nowhere.csv", "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: --device {device} cannot be used here: ")
    assert "Use cpu, or auto" in error
    assert len(error) < 250


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_ends_a_command_in_silence(unbuffered: str) -> None:
    read, write = os.pipe()
    os.close(read)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "fedwcm", "list", "recipes"]
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, env=environment, check=False)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.parametrize(
    ("arguments", "closed"),
    [
        ("list recipes", ">&-"),
        ("run --dataset digits --rounds 1 --epochs 1 --clients 2 --out run", "<&- >&- 2>&-"),
    ],
)
def test_a_command_runs_without_streams(arguments: str, closed: str, tmp_path: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -m fedwcm {arguments} {closed}"
    ended = subprocess.run(command, shell=True, capture_output=True, check=False, timeout=120, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_pipe_that_breaks_elsewhere_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> dict[str, str]:
        raise BrokenPipeError("the server hung up")

    monkeypatch.setitem(LISTS, "methods", ("a list that cannot be read", broken))
    assert main(["list", "methods"]) == 1
    assert capsys.readouterr() == ("", "error: the server hung up\n")


OWN = """
from dataclasses import dataclass
import fedwcm

@dataclass(frozen=True, kw_only=True)
class Unlucky(fedwcm.Method):
    alpha: float = 0.5

    def __post_init__(self):
        if self.alpha > 1:
            raise ValueError("alpha is too large")

    def weights(self, s, cohort):
        one, other = cohort.samples
        return one
"""


def test_an_error_of_the_users_code_is_shown_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "unlucky.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    common = ["--dataset", "digits", "--clients", "4", "--rounds", "1", "--epochs", "1", "--quiet", "--out", "out"]
    assert main(["run", "--method", "unlucky:Unlucky", *common, "--participation", "1"]) == 1
    printed = capsys.readouterr().err
    assert "one, other = cohort.samples" in printed
    assert 'unlucky.py", line 14, in weights' in printed
    assert printed.rstrip().endswith("error: too many values to unpack (expected 2)")
    assert main(["run", "--method", "unlucky:Unlucky[alpha=2]", *common]) == 2
    assert main(["run", "--method", "unlucky:Lucky", *common]) == 2
    assert main(["run", "--method", "fedavg", "--dataset", "none.csv"]) == 2
    assert "Traceback" not in capsys.readouterr().err
