"""`--method auto`: the recipe that is best on validation data."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedwcm
from fedwcm.api import training
from fedwcm.cli import main
from fedwcm.config.recipes import CANDIDATES

SMALL: Any = {"dataset": "digits", "clients": 8, "imbalance": 0.1, "rounds": 2, "epochs": 1, "participation": 0.5}


def test_auto_runs_the_best_candidate_on_validation_data_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = dict(zip(CANDIDATES, (0.0, 0.3, 0.1, 0.4, 0.2), strict=True))
    monkeypatch.setattr(training, "_validate", lambda config: scores[config.title])
    result = fedwcm.run("auto", val_fraction=0.2, out=tmp_path / "run", report=False, **SMALL)
    assert result.config.title == "fedwcm-natural"
    assert result.summary.rounds == 2
    monkeypatch.setattr(training, "_validate", pytest.fail)
    resumed = fedwcm.run("auto", val_fraction=0.2, out=tmp_path / "run", resume=True, report=False, **SMALL)
    assert resumed.config.method == result.config.method


def test_the_race_takes_a_quarter_of_the_rounds_and_no_diverged_candidate_wins() -> None:
    config = fedwcm.run("fedavg", val_fraction=0.2, **SMALL).config
    assert 0 < training._validate(config) < 1
    wild = fedwcm.run("fedavg", val_fraction=0.2, **SMALL | {"lr": 0.01, "rounds": 1}).config
    assert training._validate(replace(wild, local=replace(wild.local, lr=1e12, clip=None))) == 0.0


def test_the_race_is_won_by_what_the_user_selects_by(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], [950, 50])
    rows = rng.normal(size=(1000, 4)) + 0.7 * labels[:, None]
    options: Any = {"dataset": {"train": (rows, labels), "val": (rows, labels), "test": (rows, labels)}}
    options |= {"clients": 4, "participation": 1.0, "rounds": 20, "report": False}
    monkeypatch.setattr(training, "CANDIDATES", ("fedavg", "fedavg+longtail"))
    for metric, best in (("accuracy", "fedavg"), ("balanced_accuracy", "fedavg+longtail")):
        assert fedwcm.run("auto", settings={"run.select_by": metric}, **options).config.title == best


def test_auto_needs_validation_data_and_is_no_row_of_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="auto' chooses on validation data: give val_fraction"):
        fedwcm.run("auto", **SMALL)
    assert main(["compare", "--methods", "auto,fedavg", "--dataset", "digits", "--out", str(tmp_path / "c")]) == 2
    assert "auto is for a single run" in capsys.readouterr().err
