"""`--method auto`: the recipe that is best on validation data."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedwcm
from fedwcm.api import choice
from fedwcm.cli import main
from fedwcm.config.recipes import CANDIDATES
from fedwcm.experiment.build import run_data

DATA: Any = {"dataset": "digits", "clients": 8, "imbalance": 0.1}
SMALL: Any = DATA | {"rounds": 2, "epochs": 1, "participation": 0.5}


def test_auto_runs_the_candidate_with_the_best_mean_over_draws_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = [(0.0, 0.9, 0.1, 0.5, 0.2), (0.0, 0.1, 0.1, 0.6, 0.2)]
    drawn = iter(scores)
    monkeypatch.setattr(choice, "_validate", lambda *_: dict(zip(CANDIDATES, next(drawn), strict=True)))
    result = fedwcm.run("auto[draws=2]", val_fraction=0.2, out=tmp_path / "run", report=False, **SMALL)
    assert result.config.title == "fedwcm-natural"
    assert result.summary.rounds == 2
    monkeypatch.setattr(choice, "_validate", pytest.fail)
    resumed = fedwcm.run("auto", val_fraction=0.2, out=tmp_path / "run", resume=True, report=False, **SMALL)
    assert resumed.config.method == result.config.method


def test_draws_have_other_validation_samples_and_the_same_test() -> None:
    runs = [fedwcm.partition(val_fraction=0.2, settings={"data.val_draw": draw}, **DATA) for draw in range(3)]
    val = [tuple(data.val_rows) for data in runs]
    assert len(set(val)) == 3
    assert all(np.array_equal(data.dataset.x_test, runs[0].dataset.x_test) for data in runs)
    assert val[0] == tuple(fedwcm.partition(val_fraction=0.2, **DATA).val_rows)


def test_candidates_are_compared_early_on_as_many_draws_as_there_are(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "fedwcm")
    options = SMALL | {"rounds": 4, "report": False}
    fedwcm.run("auto[draws=3, share=0.5]", val_fraction=0.2, **options)
    assert "auto: draw 3 of 3 of" in caplog.text
    assert "on validation data after 2 rounds: fedavg 0." in caplog.text
    rows = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 3
    own: Any = {
        "dataset": {"train": rows, "val": rows, "test": rows},
        "clients": 4,
        "participation": 1.0,
        "rounds": 1,
    }
    fedwcm.run("auto[draws=3]", report=False, **own)
    assert "auto: 5 runs of 1 rounds come before" in caplog.text


def test_no_diverged_candidate_wins() -> None:
    config = fedwcm.run("fedavg", val_fraction=0.2, **SMALL | {"rounds": 1}).config
    wild = replace(config, local=replace(config.local, lr=1e12, clip=None))
    scores = choice._validate({"fedavg": config, "wild": wild}, run_data(config))
    assert scores["wild"] == 0.0 < scores["fedavg"] < 1


def test_options_of_the_choice_are_checked() -> None:
    with pytest.raises(ValueError, match=r"method\.draws = 0 is not allowed"):
        fedwcm.run("auto[draws=0]", val_fraction=0.2, **SMALL)
    with pytest.raises(ValueError, match=r"Did you mean 'method\.draws'"):
        fedwcm.run("auto[draw=2]", val_fraction=0.2, **SMALL)
    with pytest.raises(ValueError, match=r"val_draw = 1 is not allowed: it must be 0 without data\.val_fraction"):
        fedwcm.run("fedavg", settings={"data.val_draw": 1}, **SMALL)


def test_the_choice_is_by_what_the_user_selects_by(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], [950, 50])
    rows = rng.normal(size=(1000, 4)) + 0.7 * labels[:, None]
    options: Any = {"dataset": {"train": (rows, labels), "val": (rows, labels), "test": (rows, labels)}}
    options |= {"clients": 4, "participation": 1.0, "rounds": 20, "report": False}
    monkeypatch.setattr(choice, "CANDIDATES", ("fedavg", "fedavg+longtail"))
    for metric, best in (("accuracy", "fedavg"), ("balanced_accuracy", "fedavg+longtail")):
        result = fedwcm.run("auto", settings={"run.select_by": metric}, **options)
        assert result.config.title == best
        shown = repr(result)
        assert f"{metric.replace('_', ' ')} on validation data after 20 rounds: fedavg 0." in shown
        assert f"balanced accuracy  {result.outcome.balanced_accuracy:.3f}" in shown


def test_auto_needs_validation_data_and_is_no_row_of_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="auto' chooses on validation data: give val_fraction"):
        fedwcm.run("auto", **SMALL)
    assert main(["compare", "--methods", "auto,fedavg", "--dataset", "digits", "--out", str(tmp_path / "c")]) == 2
    assert "auto is for a single run" in capsys.readouterr().err
