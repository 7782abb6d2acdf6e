"""Temperatures and operating points: fitted to validation rows, kept with the model, used wherever it is used."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn.functional import cross_entropy

import fedwcm
from fedwcm.api.operating import _shift_for_cost, _with_point, _with_temperature
from fedwcm.api.own_rows import validation_rows
from fedwcm.api.trained import load_trained
from fedwcm.cli import main
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.model_file import read_facts
from fedwcm.models.facts import ModelFacts

from .objects import SMALL

CLASSES = ("ok", "warn", "alarm")
COUNTS = (800, 150, 50)


def facts(**more: Any) -> ModelFacts:
    base: Any = {"input_shape": (2,), "classes": CLASSES, "mean": (0.0,), "std": (1.0,), "class_counts": COUNTS}
    return ModelFacts(**base, **more)


def exact_logits(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples of three overlapping classes with the shares of the counts, and their exact log posteriors."""
    rng, shares = np.random.default_rng(seed), np.array(COUNTS) / 1000
    labels = rng.choice(3, size=rows, p=shares)
    means = np.array([0.0, 1.5, 3.0])
    x = means[labels] + rng.normal(size=rows)
    logits = x[:, None] * means - means**2 / 2 + np.log(shares)
    return torch.from_numpy(logits), torch.from_numpy(labels)


def recalls(logits: torch.Tensor, labels: torch.Tensor, about: ModelFacts) -> list[float]:
    predicted = (logits + torch.tensor(about.operating_shift)).argmax(dim=1)
    return [float((predicted[labels == c] == c).double().mean()) for c in range(3)]


def test_exact_posteriors_need_no_shift_for_accuracy_and_bayes_rule_for_balance() -> None:
    logits, labels = exact_logits(100_000)
    accurate, balanced = (_with_point(facts(), point, logits, labels) for point in ("accuracy", "balanced"))
    natural = np.log(facts().natural_shares)
    centred = natural - natural.mean()
    np.testing.assert_allclose(np.array(accurate.operating_shift), 0.0 * centred, atol=0.25)
    np.testing.assert_allclose(np.array(balanced.operating_shift), -centred, atol=0.35)
    untouched = _with_point(facts(), "accuracy", 9 * torch.eye(3), torch.arange(3)).operating_shift
    assert str(untouched) == "(0.0, 0.0, 0.0)"


def test_a_recall_is_reached_with_the_smallest_amount(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "fedwcm")
    logits, labels = exact_logits(5000)
    about = _with_point(facts(), "recall:alarm=0.9", logits, labels)
    assert 0.9 <= recalls(logits, labels, about)[2] < 0.9 + 2 / int((labels == 2).sum())
    assert f"rows of 'alarm' to choose on: {int((labels == 2).sum())}" in caplog.text
    with pytest.raises(ValueError, match="unknown class in the operating point: 'alrm'"):
        _with_point(facts(), "recall:alrm=0.9", logits, labels)
    with pytest.raises(ValueError, match="no row of 'alarm'"):
        _with_point(facts(), "recall:alarm=0.9", logits[labels < 2], labels[labels < 2])
    with pytest.raises(ValueError, match="it must be balanced, accuracy, recall:CLASS"):
        _with_point(facts(), "best", logits, labels)


def test_costs_move_the_thresholds_to_a_lower_mean_cost(tmp_path: Path) -> None:
    logits, labels = exact_logits(5000)
    (tmp_path / "costs.csv").write_text(",ok,warn,alarm\nok,0,1,1\nwarn,1,0,1\nalarm,40,20,0\n")
    about = _with_point(facts(), f"cost:{tmp_path / 'costs.csv'}", logits, labels)
    costs = np.array([[0, 1, 1], [1, 0, 1], [40, 20, 0]], dtype=float)

    def mean_cost(shifted: torch.Tensor) -> float:
        return float(costs[labels.numpy(), shifted.argmax(dim=1).numpy()].mean())

    bayes = (logits.softmax(dim=1).numpy() @ costs).argmin(axis=1)  # the best rule, which no shift beats by much
    reached = mean_cost(logits + torch.tensor(about.operating_shift))
    assert reached < 0.5 * mean_cost(logits)
    assert reached < 1.1 * float(costs[labels.numpy(), bayes].mean())
    even = np.ones((3, 3)) - np.eye(3)
    shift = _shift_for_cost(even, logits.numpy(), labels.numpy())
    assert ((logits + torch.from_numpy(shift)).argmax(dim=1) == labels).sum() >= (
        logits.argmax(dim=1) == labels
    ).sum()
    (tmp_path / "costs.csv").write_text(",ok,warn\nok,0,1\nwarn,1,0\n")
    with pytest.raises(ValueError, match="alarm"):
        _with_point(facts(), f"cost:{tmp_path / 'costs.csv'}", logits, labels)


@pytest.mark.parametrize("balanced_by", [None, "loss ldam"], ids=["by its rule", "fitted"])
def test_a_temperature_is_recovered_whatever_the_mix_of_the_validation_rows(balanced_by: str | None) -> None:
    logits, labels = exact_logits(40_000)
    assumed = np.array(COUNTS) ** (1.0 if balanced_by is None else 0.4)
    presupposed = logits + torch.from_numpy(np.log(assumed) - np.log(COUNTS))
    even = np.concatenate([np.flatnonzero(labels.numpy() == c)[:1500] for c in range(3)])
    for rows in (np.arange(len(labels)), even):
        fitted = _with_temperature(facts(balanced_by=balanced_by), 2.5 * presupposed[rows], labels[rows])
        assert fitted.temperature == pytest.approx(2.5, rel=0.08)
        np.testing.assert_allclose(fitted.assumed_shares, assumed / assumed.sum(), atol=0.03)


@pytest.mark.parametrize("method", ["fedavg", "fedwcm+longtail"])
def test_a_temperature_is_the_most_likely_one_and_is_used_everywhere(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    options: Any = {**SMALL, "rounds": 10}
    fedwcm.run(method, dataset="digits", imbalance=0.1, val_fraction=0.3, out=run, **options)
    before = fedwcm.evaluate(run)
    temperature = fedwcm.calibrate(run)
    assert temperature != pytest.approx(1.0, abs=0.02)
    after, kept = fedwcm.evaluate(run), read_facts(RunFolder(run))
    assert kept.temperature == temperature
    assert after.confusion == before.confusion
    assert after.test_loss != before.test_loss
    found = load_trained(run, None, False, "natural")
    rows = validation_rows(found, RunFolder(run).config())
    assert rows.y is not None
    labels, natural = torch.from_numpy(rows.y), found.logits(rows)
    shift = torch.from_numpy(kept.shift_to(kept.natural_shares)).float()
    losses = [float(cross_entropy((natural - shift) * factor + shift, labels)) for factor in (0.8, 1.0, 1.25)]
    assert losses[1] == min(losses)
    again = fedwcm.calibrate(run)
    assert again == pytest.approx(temperature, rel=1e-3)  # fitted to what was trained, not to itself
    assert main(["evaluate", str(run), "--operating-point", "recall:9=0.95", "--calibrate"]) == 0
    shown = capsys.readouterr().out
    assert "operating point recall:9=0.95, kept with the model" in shown
    assert "with the outputs for the operating point recall:9=0.95" in shown
    pointed = fedwcm.evaluate(run)
    assert pointed.confusion != before.confusion
    assert (before.used_for, pointed.used_for) == (None, "the operating point recall:9=0.95")
    assert pointed.temperature == pytest.approx(temperature, rel=1e-3)
    assert fedwcm.evaluate(run, mix="trained").confusion == before.confusion
    raw = np.random.default_rng(0).integers(0, 17, size=(6, 8, 8, 1)).astype(np.uint8)
    exported = torch.jit.load(fedwcm.export(run, "torchscript", tmp_path / "model.pt"))
    predicted = fedwcm.predict(run, raw).probabilities
    outside = exported(torch.from_numpy(raw))[1].detach().numpy()
    np.testing.assert_allclose(outside, predicted, rtol=1e-3, atol=1e-5)
    assert fedwcm.choose_operating_point(run, "none")["9"] == 0.0
    assert fedwcm.evaluate(run).confusion == before.confusion


def test_each_row_may_be_predicted_for_the_mix_of_its_own_client(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sites, labels = np.repeat(["north", "south"], 200), np.repeat([0, 1, 0, 1], [190, 10, 10, 190])
    x = (labels[:, None] + rng.normal(scale=1.5, size=(400, 2))).astype(np.float32)
    table = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "site": sites, "kind": np.array(["ok", "bad"])[labels]})
    table.sample(frac=1, random_state=0).to_csv(tmp_path / "sites.csv", index=False)
    options: Any = {"label": "kind", "client": "site", "rounds": 10, "epochs": 1, "participation": 1.0}
    run = tmp_path / "run"
    fedwcm.run("fedavg", dataset=tmp_path / "sites.csv", out=run, **options)
    common, own = fedwcm.evaluate(run), fedwcm.evaluate(run, mix="client")
    assert own.test_accuracy > common.test_accuracy + 0.1
    rows = table.drop(columns="kind")[::7]
    of_client = fedwcm.predict(run, rows, mix="client").probabilities
    for site in ("north", "south"):
        alone = fedwcm.predict(run, rows, mix=f"client:{site}", client="site").probabilities
        mine = (rows.site == site).to_numpy()
        np.testing.assert_allclose(of_client[mine], alone[mine], rtol=1e-5)
    new = rows.assign(site="west")
    natural = fedwcm.predict(run, new, mix="natural", client="site").probabilities
    np.testing.assert_allclose(fedwcm.predict(run, new, mix="client").probabilities, natural, rtol=1e-5)
    with pytest.raises(ValueError, match="needs the client of every row"):
        fedwcm.evaluate(run, {"x": x, "y": np.array(["ok", "bad"])[labels]}, mix="client")


def test_without_validation_data_other_data_is_asked_for(tmp_path: Path) -> None:
    options: Any = {**SMALL, "rounds": 1}
    fedwcm.run("fedavg", dataset="digits", out=tmp_path / "run", **options)
    with pytest.raises(ValueError, match=r"no validation data.*--validation FILE"):
        fedwcm.calibrate(tmp_path / "run")
    assert fedwcm.calibrate(tmp_path / "run", "digits") > 0
