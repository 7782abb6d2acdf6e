"""A run carries the name that the user typed, with what it resolved to beside it."""

import json
from pathlib import Path

import pytest

import fedwcm
from fedwcm.cli import main
from fedwcm.config.settings import read_toml
from fedwcm.experiment.records import RoundRecord, outcome_of
from fedwcm.reports.load import load_run

SMALL = ["--dataset", "digits", "--clients", "5", "--rounds", "1", "--epochs", "1"]


def test_balancefl_is_called_balancefl_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--method", "balancefl", *SMALL]) == 0
    output = capsys.readouterr()
    assert "balancefl (fedavg, loss balancefl, sampler balanced) on digits" in output.out
    assert "balancefl: round 1/1" in output.err
    folder = tmp_path / "runs" / "balancefl-digits"
    summary = json.loads((folder / "summary.json").read_text())
    resolved = ("balancefl", "fedavg", "balancefl", "balanced")
    assert tuple(summary[key] for key in ("name", "method", "loss", "sampler")) == resolved
    assert read_toml(folder / "config.toml")["run.name"] == "balancefl"
    assert load_run(folder).label == "balancefl"


def test_a_plain_method_needs_no_explanation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--method", "fedcm[alpha=0.3]", *SMALL, "--out", str(tmp_path / "run")]) == 0
    assert "fedcm[alpha=0.3] on digits" in capsys.readouterr().out


def test_a_warning_names_what_was_typed() -> None:
    with pytest.warns(UserWarning, match=r"the momentum of fedcm-nominal \(fedcm\) starts"):
        fedwcm.run("fedcm-nominal", dataset="digits", clients=45, epochs=1, batch_size=10, rounds=1)


def test_another_method_takes_another_name() -> None:
    first = fedwcm.run("balancefl", dataset="digits", clients=5, rounds=1).config
    assert first.title == "balancefl"
    assert fedwcm.partition(config=first, settings={"method.name": "fedcm"}).config.title == "fedcm"


def test_the_last_mean_is_that_of_ten_evaluations_not_of_rounds() -> None:
    history = [
        RoundRecord(round=5 * i, seconds=1.0, participants=1, bytes_down=1, bytes_up=1, test_accuracy=float(i))
        for i in range(1, 31)
    ]
    assert outcome_of(history).last_mean_accuracy == (21 + 30) / 2
