"""The model that is kept is that of the best round on the validation data; patience ends a run."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fedwcm
from fedwcm.cli import main
from fedwcm.config.schema import RunOptions
from fedwcm.experiment.evaluator import out_of_patience
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.records import RoundRecord, selected_record
from fedwcm.reports.table import columns_of
from tests.experiment.test_checkpoint import Interrupted
from tests.records import round_record, timeless

UNSTEADY: Any = {
    "dataset": "digits",
    "clients": 10,
    "participation": 0.2,
    "lr": 0.5,
    "epochs": 1,
    "rounds": 12,
    "val_fraction": 0.2,
    "settings": {"run.checkpoint_every": 2, "model.hidden": [16]},
}
"""Few clients a round at a high rate: the accuracy goes up and down."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> fedwcm.Result:
    return fedwcm.run("fedavg", out=tmp_path_factory.mktemp("selected") / "run", report=False, **UNSTEADY)


def test_the_selected_model_is_kept_and_the_last_is_beside_it(whole: fedwcm.Result) -> None:
    summary, folder = whole.summary, whole.folder
    best = max(whole.history, key=lambda record: record.val_accuracy)  # type: ignore[arg-type, return-value]
    assert best.round < whole.history[-1].round, "nothing to select: the last round is the best"
    assert summary.selected_round == best.round
    assert (summary.val_accuracy, summary.selected_accuracy) == (best.val_accuracy, best.test_accuracy)
    assert (summary.few, summary.macro_f1, summary.test_loss) == (best.few, best.macro_f1, best.test_loss)
    confusion = torch.tensor(summary.confusion)
    assert confusion.trace() / confusion.sum() == pytest.approx(best.test_accuracy)
    assert summary.row_hits.mean() == pytest.approx(best.test_accuracy)
    assert fedwcm.evaluate(folder).test_accuracy == best.test_accuracy  # type: ignore[arg-type]
    for key, value in load_file(folder / "model.safetensors").items():
        assert torch.equal(whole.model.state_dict()[key], value)
    (folder / "model.safetensors").rename(folder / "selected")
    (folder / "model-last.safetensors").rename(folder / "model.safetensors")
    assert fedwcm.evaluate(folder).test_accuracy == summary.final_accuracy != best.test_accuracy  # type: ignore[arg-type]
    (folder / "model.safetensors").rename(folder / "model-last.safetensors")
    (folder / "selected").rename(folder / "model.safetensors")


def test_a_run_stopped_after_the_selected_round_keeps_it_when_resumed(
    whole: fedwcm.Result, tmp_path: Path
) -> None:
    after = whole.summary.selected_round + 1  # between two checkpoints or at one
    with pytest.raises(KeyboardInterrupt):
        fedwcm.run("fedavg", out=tmp_path, progress=Interrupted(after), **UNSTEADY)
    resumed = fedwcm.run("fedavg", out=tmp_path, resume=True, report=False)
    assert timeless(resumed.history) == timeless(whole.history)
    assert timeless([resumed.summary]) == timeless([whole.summary])  # type: ignore[list-item]
    for name in ("model.safetensors", "model-last.safetensors"):
        one, two = load_file(tmp_path / name), load_file(whole.folder / name)
        assert all(torch.equal(one[key], two[key]) for key in two)


def test_a_run_without_validation_data_keeps_the_last_model_alone(tmp_path: Path) -> None:
    options: Any = {**UNSTEADY, "val_fraction": 0.0, "rounds": 2}
    result = fedwcm.run("fedavg", out=tmp_path, report=False, **options)
    assert result.summary.selected_round is None
    assert not RunFolder(tmp_path).last_model_file.exists()
    assert fedwcm.evaluate(tmp_path).test_accuracy == result.summary.final_accuracy
    with pytest.raises(ValueError, match=r"run\.patience = 3 is not allowed: it must be 0 without"):
        fedwcm.run("fedavg", patience=3, **options)


def evaluated(*scores: float | None) -> list[RoundRecord]:
    return [
        round_record(i, **({} if score is None else {"val_accuracy": score, "val_balanced_accuracy": score}))
        for i, score in enumerate(scores, 1)
    ]


@pytest.mark.parametrize(
    ("scores", "patience", "stops"),
    [
        ((0.1, 0.5, 0.4), 2, False),
        ((0.1, 0.5, 0.4, 0.5), 2, True),  # as good is not better
        ((0.1, 0.5, 0.4, 0.6), 2, False),
        ((0.5, None, 0.4, None, 0.3), 3, False),  # rounds without an evaluation do not count
        ((0.5, 0.4, 0.3, 0.2), 0, False),
        ((None, None), 1, False),
    ],
)
def test_patience_counts_evaluations_without_a_better_one(
    scores: tuple[float | None, ...], patience: int, stops: bool
) -> None:
    reason = out_of_patience(evaluated(*scores), RunOptions(patience=patience, rounds=50))
    assert (reason is not None) == stops
    if reason:
        assert "after round 4 of 50: no better validation balanced accuracy than that of round 2" in reason


def test_balanced_accuracy_selects_another_round() -> None:
    pairs = [(0.1, 0.5), (0.6, 0.4), (0.4, 0.3)]
    history = [
        round_record(i, val_accuracy=plain, val_balanced_accuracy=balanced)
        for i, (plain, balanced) in enumerate(pairs, 1)
    ]
    assert selected_record(history, "accuracy").round == 2
    assert selected_record(history).round == 1


def test_a_run_out_of_patience_stops_there_and_says_so(
    whole: fedwcm.Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = whole.summary.selected_round
    stop = next(n for n in range(1, 13) if out_of_patience(whole.history[:n], RunOptions(patience=3)))
    config = whole.folder / "config.toml"
    given = ["run", "--config", str(config), "--patience", "3", "--rounds", "30", "--no-report", "--out"]
    assert main([*given, str(tmp_path / "run")]) == 0
    folder = RunFolder(tmp_path / "run")
    assert timeless(folder.metrics()) == timeless(whole.history[:stop])
    printed = capsys.readouterr()
    assert f"stopped after round {stop} of 30" in printed.out
    assert (printed.out + printed.err).count("stopped after round") == 1
    assert f"(balanced accuracy {folder.summary().val_balanced_accuracy:.4f})" in printed.out
    assert folder.summary().stopped is not None
    assert folder.summary().rounds == stop < 30
    folder.summary_file.unlink()  # killed before the summary was written
    resumed = fedwcm.run(out=tmp_path / "run", resume=True, report=False)
    assert resumed.summary.rounds == stop
    assert resumed.summary.selected_round == folder.summary().selected_round <= best


def test_a_comparison_carries_what_to_choose_by(tmp_path: Path) -> None:
    short: Any = {key: value for key, value in UNSTEADY.items() if key != "lr"} | {"rounds": 4}
    found = fedwcm.compare(["fedavg"], [0], tmp_path, grid={"local.lr": [0.01, 0.5]}, report=False, **short)
    summaries = {result.folder.name: result.summary for runs in found.runs.values() for result in runs}
    outcomes = json.loads((tmp_path / "comparison.json").read_text())["outcomes"]
    assert {name: values["val_accuracy"] for name, values in outcomes.items()} == {
        name: summary.val_accuracy for name, summary in summaries.items()
    }
    assert {row.label: row.values["selected_accuracy"].mean for row in found.rows} == {
        label: result.summary.selected_accuracy for label, (result,) in found.runs.items()
    }
    assert " selected " in found.markdown
    without = [row for row in found.rows if row.values.update(selected_accuracy=None, val_accuracy=None) is None]
    assert "selected_accuracy" not in columns_of(without)
