"""What a run writes down for its report is what happened."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedwcm
from fedwcm.engine import server
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.run import Run
from fedwcm.reports.figures import Curves
from fedwcm.reports.run_figures import run_figures

SMALL: Any = {"dataset": "digits", "clients": 8, "participation": 0.5, "epochs": 1, "batch_size": 20, "rounds": 3}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedwcm.Result:
    return fedwcm.run("fedwcm", out=tmp_path_factory.mktemp("run") / "a", report=False, **SMALL)


def test_every_round_lists_its_clients_and_their_weights(run: fedwcm.Result) -> None:
    for record in run.history:
        clients, weights = np.array(record.clients), np.array(record.weights)
        assert len(clients) == len(weights) == len(set(clients.tolist())) == record.participants
        assert weights.sum() == pytest.approx(1.0, abs=1e-5)
        assert -(weights * np.log(weights)).sum() == pytest.approx(record.weights_entropy, abs=1e-4)


def test_the_trade_off_and_the_reliability_are_those_of_the_kept_model(run: fedwcm.Result) -> None:
    summary = run.summary
    at_zero = summary.trade_off["strength"].index(0.0)
    assert summary.trade_off["test_accuracy"][at_zero] == summary.final_accuracy
    assert summary.trade_off["balanced_accuracy"][at_zero] == pytest.approx(summary.balanced_accuracy)
    assert summary.trade_off["few"][at_zero] == pytest.approx(summary.few)
    table = [np.array(summary.reliability[key], dtype=float) for key in ("samples", "confidence", "accuracy")]
    samples, confidence, accuracy = table
    assert (samples * np.abs(accuracy - confidence))[samples > 0].sum() / samples.sum() == pytest.approx(
        summary.test_ece
    )
    assert run.folder is not None
    figures: Any = {figure.key: figure for figure in run_figures(Run(RunFolder(run.folder)), 100)}
    drawn = figures["trade-off-few"]
    assert drawn.curves[0].point == (summary.final_accuracy, summary.few)
    assert "trade-off-balanced-accuracy" not in figures  # the digits' test set is balanced: the same as accuracy
    assert isinstance(figures["reliability"], Curves)


def test_the_split_is_the_division_that_was_trained_on(run: fedwcm.Result) -> None:
    assert run.folder is not None
    split = RunFolder(run.folder).partition()
    division = fedwcm.partition(config=run.config)
    assert np.array_equal(split.counts, division.counts)
    assert split.classes == division.classes
    assert split.totals == run.summary.train_counts


def test_of_a_large_cohort_no_client_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LISTED_WEIGHTS", 3)
    history = fedwcm.run("fedavg", **SMALL).history
    assert all(record.clients is None and record.weights is None for record in history)


def test_the_same_seed_lists_the_same(tmp_path: Path, run: fedwcm.Result) -> None:
    again = fedwcm.run("fedwcm", out=tmp_path / "b", report=False, **SMALL)
    assert [(r.clients, r.weights) for r in again.history] == [(r.clients, r.weights) for r in run.history]
