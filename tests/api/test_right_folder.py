"""A folder holds one run or comparison, of one set of data and one model, under the name that was typed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from torch import nn

import fedwcm
from fedwcm.cli import main
from fedwcm.config.flags import config_from
from fedwcm.config.settings import read_toml
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.records import RoundRecord, outcome_of
from fedwcm.reports.load import load_run

X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
Y = np.arange(60) % 3
FLAGS = ["--dataset", "digits", "--clients", "5", "--rounds", "1", "--epochs", "1"]
SMALL: dict[str, Any] = {"dataset": (X, Y), "clients": 3, "epochs": 1, "report": False}


def write_table(path: Path, labels: "np.ndarray[Any, Any]") -> str:
    pd.DataFrame(X, columns=list("abcd")).assign(label=labels).to_csv(path, index=False)
    return str(path)


def test_a_file_that_has_changed_is_not_taken_for_the_data_of_before(tmp_path: Path) -> None:
    options: dict[str, Any] = {"label": "label", "clients": 3, "epochs": 1, "report": False}
    options["dataset"] = write_table(tmp_path / "table.csv", Y)
    fedwcm.compare(["fedavg"], [0, 1], tmp_path / "both", rounds=1, **options)
    fedwcm.run("fedavg", out=tmp_path / "run", rounds=1, **options)
    write_table(tmp_path / "table.csv", np.roll(Y, 1))
    with pytest.raises(ValueError, match=r"table\.csv has changed since"):
        fedwcm.compare(["fedavg"], [1, 0], tmp_path / "both", rounds=1, **options)
    for rounds in (1, 2):
        with pytest.raises(ValueError, match=r"table\.csv has changed since"):
            fedwcm.run(out=tmp_path / "run", resume=True, rounds=rounds)
    write_table(tmp_path / "table.csv", Y)
    assert len(fedwcm.run(out=tmp_path / "run", resume=True, rounds=2, report=False).history) == 2


def test_a_comparison_counts_its_own_runs_only(tmp_path: Path) -> None:
    fedwcm.run("fedavg", out=tmp_path / "try", rounds=1, **{**SMALL, "dataset": "digits"})
    compared = fedwcm.compare(["fedavg", "fedcm"], [0], tmp_path, rounds=1, **{**SMALL, "dataset": "digits"})
    assert [(len(group.runs), group.label) for group in compared.groups] == [(1, "fedavg"), (1, "fedcm")]


def test_a_run_and_a_comparison_do_not_share_a_folder(tmp_path: Path) -> None:
    fedwcm.run("fedavg", out=tmp_path / "run", rounds=1, **SMALL)
    with pytest.raises(ValueError, match="holds a single run"):
        fedwcm.compare(["fedcm"], [0], tmp_path / "run", rounds=1, **SMALL)
    fedwcm.compare(["fedcm"], [0], tmp_path / "both", rounds=1, **SMALL)
    for resume in (False, True):
        with pytest.raises(ValueError, match="holds a comparison"):
            fedwcm.run("fedavg", out=tmp_path / "both", resume=resume, rounds=1, **SMALL)


def test_another_model_of_the_same_name_is_refused(tmp_path: Path) -> None:
    def model(shape: Any, n: int) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 3))

    def other(shape: Any, n: int) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 3))

    other.__qualname__ = model.__qualname__
    fedwcm.run("fedavg", out=tmp_path, rounds=1, model=model, **SMALL)
    before = RunFolder(tmp_path).metrics_file.read_bytes()
    with pytest.raises(ValueError, match=r"model\.layout"):
        fedwcm.run("fedavg", out=tmp_path, resume=True, rounds=2, model=other, **SMALL)
    assert RunFolder(tmp_path).metrics_file.read_bytes() == before
    assert len(fedwcm.run("fedavg", out=tmp_path, resume=True, rounds=2, model=model, **SMALL).history) == 2
    assert fedwcm.predict(tmp_path, X, model=model).labels


@pytest.mark.parametrize(
    ("method", "settings", "name"),
    [
        ("fedcm[alpha=0.3]", {"method.alpha": 0.5}, "fedcm[alpha=0.5]"),
        ("fedcm[alpha=0.3]", {"method.alpha": 0.3, "local.lr": 0.2}, "fedcm[alpha=0.3]"),
        ("fedwcm+longtail", {"loss.name": "focal"}, "fedwcm+longtail[loss.name=focal]"),
        ("fedwcm+longtail", {"server.ema": 0.5, "run.name": "mine"}, "mine"),
        ("fedwcm", {"method.q": "off"}, "fedwcm"),
        ("fedcm", {"method.name": "fedavg"}, "fedavg"),
    ],
)
def test_the_name_of_a_run_tells_what_was_changed_of_its_recipe(method: str, settings: Any, name: str) -> None:
    changed = config_from(method, None, settings)
    assert changed.title == name
    if "[" in name:
        assert config_from(name).loss.name == changed.loss.name


def test_balancefl_is_called_balancefl_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--method", "balancefl", *FLAGS]) == 0
    output = capsys.readouterr()
    assert "balancefl (fedavg, loss balancefl, sampler balanced) on digits" in output.out
    assert "balancefl: round 1/1" in output.err
    folder = tmp_path / "runs" / "balancefl-digits"
    summary = json.loads((folder / "summary.json").read_text())
    resolved = ("balancefl", "fedavg", "balancefl", "balanced")
    assert tuple(summary[key] for key in ("name", "method", "loss", "sampler")) == resolved
    assert read_toml(folder / "config.toml")["run.name"] == "balancefl"
    assert load_run(folder).label == "balancefl"


def test_the_last_mean_is_that_of_ten_evaluations_not_of_rounds() -> None:
    history = [
        RoundRecord(round=5 * i, seconds=1.0, participants=1, bytes_down=1, bytes_up=1, test_accuracy=float(i))
        for i in range(1, 31)
    ]
    assert outcome_of(history).last_mean_accuracy == (21 + 30) / 2
