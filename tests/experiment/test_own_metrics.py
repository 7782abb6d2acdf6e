"""Metrics, trackers and losses of a user's own: in records, summaries, tables and reports."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedwcm
from fedwcm.experiment.records import Summary
from fedwcm.experiment.trackers import TrackedRun
from fedwcm.losses.focal import Focal

SMALL: dict[str, Any] = {"dataset": "digits", "clients": 4, "rounds": 2, "epochs": 1, "participation": 1.0}


def save_predictions(tested: fedwcm.Evaluated) -> Mapping[str, float]:
    """Save the probabilities of each round; the model itself says the same."""
    assert tested.folder is not None
    np.save(tested.folder / f"predictions-{tested.round}.npy", tested.probabilities)
    logits = tested.model(tested.inputs[:5]).detach().numpy()
    np.testing.assert_allclose(logits, tested.logits[:5], rtol=1e-4, atol=1e-5)
    return {"surest": float(tested.probabilities.max()), "round": tested.round}


def test_a_metric_of_ones_own_is_measured_every_round_and_ends_up_everywhere(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    comparison = fedwcm.compare(["fedavg", "fedwcm"], [0], out, metrics=["auc", save_predictions], **SMALL)
    run = comparison.runs["fedavg"][0]
    assert [sorted(record.metrics or ()) for record in run.history] == [["auc", "round", "surest"]] * 2
    assert [record.number("metrics", "round") for record in run.history] == [1, 2]
    assert run.summary.metrics == run.history[-1].metrics
    assert "metrics.auc_mean" in (out / "table.csv").read_text().splitlines()[0]
    assert "auc over rounds" in (out / "report.html").read_text()
    assert np.load(run.folder / "predictions-2.npy").shape[1] == 10


def test_what_is_measured_does_not_change_the_run() -> None:
    plain, measured = (fedwcm.run("fedavg", metrics=m, **SMALL) for m in (None, ["auc", "brier"]))
    assert plain.summary.final_accuracy == measured.summary.final_accuracy
    assert plain.summary.metrics is None


def test_an_unknown_metric_and_one_that_returns_no_number_are_named() -> None:
    with pytest.raises(ValueError, match=r"unknown metric 'auk'.*auc"):
        fedwcm.run("fedavg", metrics=["auk"], **SMALL)
    with pytest.raises(ValueError, match=r"the metric .*returned 'much'"):
        fedwcm.run("fedavg", metrics=[lambda tested: "much"], **SMALL)  # type: ignore[list-item, return-value]


class Diary(fedwcm.Tracker):
    name = "diary"

    def __init__(self) -> None:
        self.lines: list[str] = []

    def start(self, run: TrackedRun) -> None:
        self.lines.append("start")

    def log(self, number: int, scalars: Mapping[str, float]) -> None:
        self.lines.append(f"round {number}, auc {'metrics/auc' in scalars}")

    def finish(self, summary: Summary) -> None:
        self.lines.append("finish")

    def close(self) -> None:
        self.lines.append("close")


def test_a_tracker_may_be_an_object_and_is_left_out_where_it_is_not_given_again(tmp_path: Path) -> None:
    diary = Diary()
    fedwcm.run("fedavg", out=tmp_path / "run", track=[diary], metrics=["auc"], **SMALL)
    assert diary.lines == ["start", "round 1, auc True", "round 2, auc True", "finish", "close"]
    again = fedwcm.run(out=tmp_path / "run", resume=True, rounds=3)
    assert len(again.history) == 3
    assert len(diary.lines) == 5


def test_each_method_of_a_comparison_may_have_a_name_and_a_loss_of_its_own(tmp_path: Path) -> None:
    methods: dict[str, Any] = {
        "FedAvg (focal)": {"method": "fedavg", "loss": Focal(gamma=3.0), "local.lr": 0.05},
        "FedWCM": "fedwcm",
    }
    comparison = fedwcm.compare(methods, [0], tmp_path / "runs", **SMALL)
    focal, other = (comparison.runs[name][0].config for name in methods)
    assert (focal.loss.name, focal.loss.options["gamma"], focal.local.lr) == ("focal", 3.0, 0.05)
    assert (other.loss.name, other.local.lr) == ("cross_entropy", 0.1)
    assert "FedAvg (focal)" in (tmp_path / "runs" / "table.tex").read_text()
    with pytest.raises(ValueError, match="a method, or options with one as 'method'"):
        fedwcm.compare({"Ours": {"lr": 0.1}}, [0], tmp_path / "others", **SMALL)
