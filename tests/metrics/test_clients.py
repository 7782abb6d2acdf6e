"""Accuracy of each client: on its own test samples, or by its classes; its mean, worst decile and spread."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedwcm
from fedwcm.engine.evaluate import Evaluation
from fedwcm.experiment.folder import RunFolder
from fedwcm.metrics.clients import ByOwnClasses, OnOwnSamples, name_accuracies, spread_over_clients
from fedwcm.reports.content import report_content
from fedwcm.reports.load import load_runs
from fedwcm.reports.table import rows_of

RNG = np.random.default_rng(0)
TRUE, PREDICTED = RNG.integers(0, 3, 200), RNG.integers(0, 3, 200)
OWNERS = np.array([f"p{who}" for who in RNG.integers(0, 7, 200)])


def evaluation(rows: np.ndarray) -> Evaluation:
    ones = np.ones(rows.sum(), dtype=np.float32)
    return Evaluation(TRUE[rows], PREDICTED[rows], ones, ones, 1.0, 3)


TESTED = evaluation(TRUE >= 0)


def test_own_samples_are_counted_for_their_owner() -> None:
    measure = OnOwnSamples.of(OWNERS)
    expected = {name: float((TRUE == PREDICTED)[name == OWNERS].mean()) for name in np.unique(OWNERS)}
    assert name_accuracies(measure(TESTED), measure.names) == pytest.approx(expected)


def test_by_classes_a_client_has_the_accuracy_of_its_class_mix() -> None:
    like_all, per_class = np.bincount(TRUE), np.diag(TESTED.confusion) / TESTED.confusion.sum(axis=1)
    measured = ByOwnClasses(np.array([like_all, [0, 5, 0], [0, 0, 0]]))(TESTED)
    assert ByOwnClasses(np.eye(2, 3, dtype=int)).names == ("0", "1")
    assert ByOwnClasses(np.eye(2, 3, dtype=int), ("Anna", "Eve")).names == ("Anna", "Eve")
    assert measured[0] == pytest.approx((TRUE == PREDICTED).mean())
    assert measured[1] == pytest.approx(per_class[1])
    assert np.isnan(measured[2])
    untested = evaluation(TRUE != 2)
    assert ByOwnClasses(np.array([[0, 5, 20]]))(untested) == pytest.approx(per_class[1:2])


def test_the_worst_decile_is_the_mean_of_the_worst_tenth_at_least_of_one() -> None:
    accuracy = np.append(np.arange(20) / 20, np.nan)
    spread = spread_over_clients(accuracy)
    assert spread["client_worst_decile"] == pytest.approx((0 + 0.05) / 2)
    assert spread["client_mean"] == pytest.approx(0.475)
    assert spread["client_std"] == pytest.approx(np.std(np.arange(20) / 20))
    assert spread_over_clients(np.array([0.4, 0.8]))["client_worst_decile"] == 0.4
    for clients, worst in [(9, 1), (10, 1), (11, 2), (15, 2), (20, 2), (21, 3), (100, 10)]:  # rounded up
        decile = spread_over_clients(np.arange(float(clients)))["client_worst_decile"]
        assert decile == pytest.approx((worst - 1) / 2), clients
    assert spread_over_clients(np.array([np.nan])) == {}


SMALL: Any = {"rounds": 3, "epochs": 1, "settings": {"model.hidden": [8]}, "val_fraction": 0.2}


def people() -> dict[str, np.ndarray]:
    y = RNG.integers(0, 3, 300)
    owner = np.repeat([f"p{i}" for i in range(6)], 50)
    x = np.stack([y + RNG.normal(size=300), RNG.normal(size=300)], axis=1).astype(np.float32)
    return {"x": x, "y": y, "client": owner}


@pytest.mark.parametrize("held_out", [None, ["p1", "p4"]], ids=["rows", "people"])
def test_a_run_names_its_clients_in_summary_table_and_report(held_out: list[str] | None, tmp_path: Path) -> None:
    data = people()
    result = fedwcm.run("fedavg", dataset=data, test_clients=held_out, out=tmp_path, report=False, **SMALL)
    summary = result.summary
    assert summary.client_accuracy is not None
    assert set(summary.client_accuracy) == set(held_out or [f"p{i}" for i in range(6)])
    values = np.array([*summary.client_accuracy.values()])
    assert summary.client_mean == pytest.approx(values.mean())
    assert summary.client_std == pytest.approx(values.std())
    if held_out:  # as many rows each, so that clients and rows weigh the same
        assert summary.client_mean == pytest.approx(summary.selected_accuracy)
    measured = fedwcm.evaluate(tmp_path, data)
    assert measured.client_accuracy == summary.client_accuracy
    assert RunFolder(tmp_path).summary() == summary
    content = report_content(load_runs([tmp_path]), 100)
    drawn, constant = {figure.key for figure in content.figures}, " ".join(content.notes)
    assert "client-accuracy" in drawn
    assert ("clients" in drawn) != ("“Accuracy of the clients”" in constant)
    assert "worst decile" in {label for label, _, _ in content.tiles}


def test_test_data_that_are_nobodys_are_measured_by_class_if_asked_for(tmp_path: Path) -> None:
    options: Any = {"dataset": "digits", "clients": 5, **SMALL, "rounds": 1}
    assert fedwcm.run("fedavg", **options).summary.client_mean is None
    found = fedwcm.compare(["fedavg"], [0], tmp_path, diagnostics=["clients"], report=False, **options)
    [[result]] = found.runs.values()
    assert list(result.summary.client_accuracy or {}) == ["0", "1", "2", "3", "4"]
    assert "worst decile" in found.markdown


def test_owners_of_test_samples_are_not_the_clients_that_a_partition_made(tmp_path: Path) -> None:
    options: Any = {"partition": "equal", "clients": 10, "diagnostics": ["clients"], "participation": 1.0, **SMALL}
    accuracy = fedwcm.run("fedavg", dataset=people(), **options).summary.client_accuracy
    assert accuracy is not None
    assert set(accuracy) == {str(client) for client in range(10)}


def test_the_gain_of_fine_tuning_is_that_of_the_clients_that_were_fine_tuned(tmp_path: Path) -> None:
    data = people()
    test = {key: values[::5] for key, values in data.items()}
    test["client"] = np.where(np.arange(60) % 2, test["client"], "only tested")
    parts: Any = {f"{key}_train": values for key, values in data.items()} | {
        f"{k}_test": v for k, v in test.items()
    }
    np.savez(tmp_path / "people.npz", **parts)
    options: Any = {**SMALL, "participation": 1.0, "out": tmp_path / "run", "report": False}
    fedwcm.run("fedavg", dataset=tmp_path / "people.npz", **options)
    record = fedwcm.personalize(tmp_path / "run", epochs=3, write=True)
    (row,) = rows_of(load_runs([tmp_path / "run"]))
    gain, tuned = row.values["personalization_gain"], row.values["personalized"]
    assert gain is not None
    assert tuned is not None
    assert gain.mean == pytest.approx(record.after["client_mean"] - record.before["client_mean"])
    assert row.values["client_mean"] != tuned.mean - gain.mean
