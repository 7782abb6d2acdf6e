"""A finished run goes on, as if it had been longer from the start, or says why it cannot."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import fedwcm
from fedwcm.cli import main
from fedwcm.core.types import Ints
from fedwcm.experiment.folder import RunFolder
from tests.records import timeless

SMALL: dict[str, Any] = {"dataset": "digits", "clients": 6, "epochs": 1, "participation": 0.5, "report": False}


@pytest.mark.parametrize("out", [None, "typo"])
def test_without_a_run_there_nothing_is_resumed_unless_it_is_said_what_to_start(
    out: str | None, tmp_path: Path
) -> None:
    folder = None if out is None else tmp_path / out
    with pytest.raises(ValueError, match=f"{out or 'out'} holds no run to resume"):
        fedwcm.run(out=folder, resume=True, rounds=1)
    assert fedwcm.run("fedavg", out=folder, resume=True, **SMALL, rounds=1).summary.rounds == 1


@pytest.mark.parametrize(
    "options", [{}, {"val_fraction": 0.2, "settings": {"local.schedule": "exponential", "local.lr_decay": 0.9}}]
)
def test_a_run_that_went_on_equals_one_that_was_longer_from_the_start(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    whole = fedwcm.run("scaffold", out=tmp_path / "whole", rounds=5, **SMALL, **options)
    fedwcm.run("scaffold", out=tmp_path / "parts", rounds=3, **SMALL, **options)
    longer = fedwcm.run(out=tmp_path / "parts", resume=True, rounds=5, report=False)
    assert timeless(longer.history) == timeless(whole.history)
    assert (tmp_path / "parts" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()
    held = RunFolder(tmp_path / "parts")
    assert held.config().run.rounds == held.summary().rounds == 5
    assert held.summary().final_accuracy == whole.summary.final_accuracy


@pytest.mark.parametrize("patience", [3, 0])
def test_a_run_that_stopped_early_goes_on_with_more_patience(patience: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {**SMALL, "val_fraction": 0.2, "lr": 1.0, "rounds": 12}
    whole = fedwcm.run("fedavg", out=tmp_path / "whole", patience=patience, **options)
    short = fedwcm.run("fedavg", out=tmp_path / "parts", patience=1, **options)
    assert short.summary.rounds < whole.summary.rounds
    longer = fedwcm.run(out=tmp_path / "parts", resume=True, patience=patience, report=False)
    assert timeless(longer.history) == timeless(whole.history)
    assert timeless([longer.summary]) == timeless([whole.summary])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=f"run.patience: {patience} is now 1"):
        fedwcm.run(out=tmp_path / "parts", resume=True, patience=1, report=False)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"local.schedule": "cosine"}, "local.schedule = 'cosine' depends on run.rounds"),
        ({"loss.name": "ldam"}, "the loss 'ldam' depends on run.rounds"),
        ({"run.eval_every": 3}, "only because it was the last"),
        ({}, "run.rounds: 2 is now 1"),
    ],
)
def test_what_would_have_begun_differently_is_refused_and_left_as_it_is(
    settings: dict[str, object], reason: str, tmp_path: Path
) -> None:
    fedwcm.run("fedavg", out=tmp_path, rounds=2, settings=settings, **SMALL)
    before = (tmp_path / "summary.json").read_bytes()
    with pytest.raises(ValueError, match=reason):
        fedwcm.run(out=tmp_path, resume=True, rounds=1 if "now 1" in reason else 4, report=False)
    assert (tmp_path / "summary.json").read_bytes() == before


def test_options_edited_in_the_folder_are_noticed(tmp_path: Path) -> None:
    fedwcm.run("fedavg", out=tmp_path, rounds=2, **SMALL)
    written = tmp_path / "config.toml"
    text = written.read_text()
    written.write_text(text.replace("epochs = 1", "epochs = 2"))
    with pytest.raises(ValueError, match=r"another configuration: local\.epochs: 1 is now 2"):
        fedwcm.run(out=tmp_path, resume=True, report=False)
    written.write_text(text.replace("rounds = 2", "rounds = 3"))
    assert fedwcm.run(out=tmp_path, resume=True, report=False).summary.rounds == 3


def test_a_comparison_goes_on_and_tells_scripts_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", "--methods", "fedavg,fedcm", "--dataset", "digits", "--clients", "6", "--epochs", "1"]
    command += ["--no-report", "--json", "--out", str(tmp_path)]
    assert main([*command, "--rounds", "2"]) == 0
    capsys.readouterr()
    assert main([*command, "--rounds", "3"]) == 0
    message = json.loads(capsys.readouterr().out)
    assert {row["method"]: row["values"]["final_accuracy"]["runs"] for row in message["rows"]} == {
        "fedavg": 1,
        "fedcm": 1,
    }
    assert [RunFolder(path).summary().rounds for path in (tmp_path / "runs").iterdir()] == [3, 3]
    run = ["run", "--out", str(tmp_path / "runs" / "fedavg-seed0"), "--resume", "--json"]
    assert main(run) == 0
    assert json.loads(capsys.readouterr().out)["rounds"] == 3


def by_rows(clients: int) -> Callable[[Ints, np.random.Generator], list[Ints]]:
    def division(labels: Ints, rng: np.random.Generator) -> list[Ints]:
        return [np.arange(len(labels))[k::clients] for k in range(clients)]

    return division


def test_a_comparison_notices_that_a_function_divides_the_samples_differently(tmp_path: Path) -> None:
    options: dict[str, Any] = {"dataset": "digits", "epochs": 1, "rounds": 1, "report": False}
    fedwcm.compare(["fedavg"], [0, 1], tmp_path, partition=by_rows(3), **options)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="divided differently among 3 clients, now there are 4"):
        fedwcm.compare(["fedavg"], [0, 1], tmp_path, partition=by_rows(4), **options)  # type: ignore[call-overload]
    run = tmp_path / "runs" / "fedavg-seed1"
    with pytest.raises(ValueError, match="divided differently"):
        fedwcm.run("fedavg", out=run, resume=True, seed=1, partition=by_rows(4), **options)  # type: ignore[arg-type]
    assert fedwcm.compare(["fedavg"], [0, 1], tmp_path, partition=by_rows(3), **options).rows  # type: ignore[call-overload]


def test_a_comparison_notices_other_weights_and_a_resumed_run_keeps_its_own(
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {**SMALL, "rounds": 2}
    first, other = (nn.Sequential(nn.Flatten(), nn.Linear(64, 10)) for _ in range(2))
    fedwcm.compare(["fedavg"], [0], tmp_path / "c", model=first, **options)
    with pytest.raises(ValueError, match=r"model\.weights: .* is now"):
        fedwcm.compare(["fedavg"], [0], tmp_path / "c", model=other, **options)
    folder = tmp_path / "c" / "runs" / "fedavg-seed0"
    longer = fedwcm.run(model=other, out=folder, resume=True, rounds=3, report=False)
    whole = fedwcm.run("fedavg", model=first, **{**SMALL, "rounds": 3})
    assert timeless(longer.history) == timeless(whole.history)
    fedwcm.compare(["fedavg"], [0], tmp_path / "c", model=first, **{**SMALL, "rounds": 3})


def test_cut_metrics_are_said_and_a_damaged_summary_is_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"dataset": "digits", "clients": 4, "rounds": 3, "epochs": 1, "settings": {"run.workers": 1}}
    out = tmp_path / "run"
    fedwcm.run("fedavg", out=out, report=False, **options)  # type: ignore[arg-type]
    summary, metrics = (out / "summary.json").read_text(), (out / "metrics.jsonl").read_bytes()
    (out / "summary.json").unlink()
    for problem in ("is missing", "is not JSON"):
        with pytest.raises(ValueError, match=rf"summary\.json.* {problem}.* writes it again when it is resumed"):
            fedwcm.evaluate(out)
        (out / "summary.json").write_text(summary[:100])
    with pytest.warns(UserWarning, match="made again"):
        fedwcm.run("fedavg", out=out, resume=True, report=False, **options)  # type: ignore[arg-type]
    before, after = (json.loads(text) for text in (summary, (out / "summary.json").read_text()))
    assert {**after, "seconds_per_round": before["seconds_per_round"]} == before
    assert (out / "metrics.jsonl").read_bytes() == metrics
    for content, last in ((b"", 0), (metrics[:-20], 2)):
        (out / "metrics.jsonl").write_bytes(content)
        with pytest.warns(UserWarning, match=f"ends with round {last}, but the run was evaluated up to 3"):
            assert len(fedwcm.open_run(out).history) == last
    assert main(["report", str(out)]) == 0
    assert "curves and rounds are missing" in capsys.readouterr().err
