"""The search for options: spaces, equal budgets, pruning, resuming and joining."""

import csv
import multiprocessing
import os
import re
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("optuna", reason="the extra fedwcm[tune] is not installed")

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

import fedwcm
from fedwcm.api.description import describe_run, describe_settings
from fedwcm.cli import main
from fedwcm.config.flags import config_from
from fedwcm.config.settings import method_settings
from fedwcm.methods.fedprox import FedProx
from fedwcm.sweeps.tuning import trial as trial_module
from fedwcm.sweeps.tuning.result import Tuning, winner
from fedwcm.sweeps.tuning.study import MethodStudy, ranges_in, space_from
from fedwcm.sweeps.tuning.tune import search_options
from tests.records import round_record, summary

SMALL: Any = {"dataset": "digits", "clients": 6, "epochs": 1, "rounds": 2, "participation": 0.5}
FLAGS = [part for key, value in SMALL.items() for part in (f"--{key}", str(value))]


def test_a_space_is_read_from_texts_over_a_file(tmp_path: Path) -> None:
    file = tmp_path / "space.toml"
    file.write_text('[local]\nlr = "log:0.01:1"\nepochs = "int:1:4"\n[method]\nalpha = [0.1, 0.5]\n')
    assert space_from(ranges_in(["lr=0.1:0.2", "loss.name=focal,cross_entropy"]), file) == {
        "local.lr": FloatDistribution(0.1, 0.2),
        "local.epochs": IntDistribution(1, 4),
        "method.alpha": CategoricalDistribution([0.1, 0.5]),
        "loss.name": CategoricalDistribution(["focal", "cross_entropy"]),
    }


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "nothing to search"),
        (["lr"], "log:LOW:HIGH"),
        (["lr=1:0.1"], "log:LOW:HIGH.*, with LOW < HIGH"),
        (["lr=lin:0.1:1"], "log:LOW:HIGH"),
        (["lr=a:b"], "log:LOW:HIGH"),
        (["lr=log:0:0.5"], "it must be log:LOW:HIGH with LOW above 0"),
        (["epochs=1:4"], r"search local\.epochs = '1:4' is not allowed: it is a whole number, so write int:1:4"),
        (["epochs=log:1:4"], "so write intlog:1:4"),
    ],
)
def test_a_range_says_what_is_wrong_with_it(texts: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        space_from(ranges_in(texts))


def test_every_method_gets_the_same_budget_and_only_its_own_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["tune", "--methods", "fedavg,fedcm", "--search", "lr=log:0.01:0.5", *FLAGS, "--quiet"]
    command += ["--search", "method.alpha=0.1:0.9", "--seeds", "0", "--out", str(tmp_path)]
    assert main([*command, "--trials", "1"]) == 0
    first = (tmp_path / "trials.csv").read_text().splitlines()
    assert main([*command, "--trials", "2"]) == 0  # the same command goes on
    rows = list(csv.DictReader((tmp_path / "trials.csv").open()))
    assert [sum(row["method"] == name for row in rows) for name in ("fedavg", "fedcm")] == [2, 2]
    assert set(first) <= set((tmp_path / "trials.csv").read_text().splitlines())
    assert {row["method.alpha"] == "" for row in rows if row["method"] == "fedavg"} == {True}
    assert len({row["local.lr"] for row in rows if row["method"] == "fedcm"}) == 2
    output = capsys.readouterr().out
    run = next(line for line in output.splitlines() if line.startswith("    fedwcm run ") and "fedcm" in line)
    arguments = shlex.split(run)[2:]
    config = config_from(arguments[3], arguments[1])
    best = max(
        (row for row in rows if row["method"] == "fedcm"), key=lambda row: float(row["val_balanced_accuracy"])
    )
    assert config.local.lr == float(best["local.lr"])
    assert config.method.options["alpha"] == float(best["method.alpha"])
    assert config.run.rounds == 2
    assert main([*command, "--trials", "2", "--epochs", "2"]) == 2
    assert "with other options" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("methods", "search", "message"),
    [
        (["fedavg"], "method.alpha=0.1:0.9", r"unknown option of fedavg: 'method\.alpha'.*Known: method\.average"),
        (["fedavg[local.lr=0.1]"], "lr=0.1:0.9", "fixes local.lr"),
        (["fedavg", "fedwmc"], "lr=0.1:0.9", "Did you mean 'fedwcm'"),
    ],
)
def test_what_could_not_run_is_refused_before_the_first_trial(
    methods: list[str], search: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        fedwcm.tune(methods, ranges_in([search]), tmp_path / "t", trials=1, **SMALL)
    assert not (tmp_path / "t").exists()


def test_without_validation_data_there_is_nothing_to_choose_by(tmp_path: Path) -> None:
    fedwcm.run("fedavg", out=tmp_path / "run", report=False, **{**SMALL, "rounds": 1})
    out, message = tmp_path / "tuned", r"data\.val_fraction = 0\.0 is not allowed.*chosen on validation data"
    for options in ({"config": tmp_path / "run" / "config.toml"}, {**SMALL, "val_fraction": 0.0}):
        with pytest.raises(ValueError, match=message):
            fedwcm.tune(["fedavg"], {"lr": "0.1:0.9"}, out, trials=1, **options)
    with pytest.raises(ValueError, match=r"data\.dataset = 'synthetic' cannot be tuned on"):
        fedwcm.tune(["fedavg"], {"lr": "0.1:0.9"}, out, trials=1, dataset="synthetic")
    assert not out.exists()  # refused before the first trial


def test_a_search_is_not_continued_on_other_data(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)).astype(np.float32), np.tile(np.arange(3), 20)
    asked: dict[str, Any] = {"methods": ["fedavg"], "search": {"lr": [0.05, 0.1]}, "trials": 1, "rounds": 1}
    owners = np.repeat(np.arange(4), 15)
    given: Any = {"dataset": (x, y), "clients": owners, "model": torch.nn.Linear(4, 3)}
    fedwcm.tune(out=tmp_path, **asked, **given)
    fedwcm.tune(out=tmp_path, **asked, **given)
    for name, other in {
        "dataset": (x + 1, y),
        "clients": np.roll(owners, 3),
        "model": torch.nn.Linear(4, 3, bias=False),
    }.items():
        with pytest.raises(ValueError, match="holds a search of fedavg with other options"):
            fedwcm.tune(out=tmp_path, **asked, **{**given, name: other})


def test_from_python_the_result_prints_and_its_winner_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    methods, search = ["fedavg", "fedcm[alpha=0.2]"], {"lr": [0.05, 0.1], "loss.name": ("focal", "cross_entropy")}
    found = fedwcm.tune(methods, search, tmp_path, trials=1, progress=lines.append, **SMALL)
    assert [line.split(",")[0] for line in lines] == methods
    assert list(found.trials) == list(found.best) == methods
    lines = repr(found).splitlines()
    assert [line.startswith(name) for line, name in zip(lines, [*methods, "saved in"], strict=True)] == [True] * 3
    (best,) = found.trials["fedcm[alpha=0.2]"]
    assert f"validation {best.value:.4f}" in lines[1]
    assert found._repr_html_().count("<tr>") == 3
    config = config_from(found.best["fedcm[alpha=0.2]"], found.config)
    assert config.method.options["alpha"] == 0.2
    assert (config.local.lr, config.loss.name) == (best.params["local.lr"], best.params["loss.name"])
    assert config.run.rounds == SMALL["rounds"]
    again = fedwcm.tune(methods, search, tmp_path, trials=1, **SMALL)
    assert repr(again) == repr(found)
    assert shlex.split(found.command)[:2] == ["fedwcm", "compare"]
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"needs optuna: pip install 'fedwcm\[tune\]'"):
        fedwcm.tune(["fedavg"], search, tmp_path)


def test_all_trials_are_a_data_frame(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed: it comes with fedwcm[notebook]")
    distributions = {"local.lr": FloatDistribution(0, 1)}
    trial = optuna.trial.create_trial(params={"local.lr": 0.1}, distributions=distributions, value=1.0)  # type: ignore[arg-type]
    frame = Tuning(tmp_path, [0], {"fedavg": [trial], "fedcm": []}).table()
    assert list(frame["method"]) == ["fedavg"]
    assert list(frame["local.lr"]) == [0.1]


def study_in(folder: Path) -> MethodStudy:
    return MethodStudy(folder, "fedavg", space_from(ranges_in(["lr=0.1:0.9"])), "asked", 0)


def test_trials_are_shared_and_those_of_a_dead_process_given_back(tmp_path: Path) -> None:
    study, other = study_in(tmp_path), study_in(tmp_path)
    one, two = study.next_trial(3), other.next_trial(3)
    assert one is not None
    assert two is not None
    assert one.params != two.params
    process = multiprocessing.get_context("fork").Process(target=lambda: study_in(tmp_path).next_trial(3))
    process.start()
    process.join()  # it dies with the third trial in its hands
    lost = other.study.get_trials()[2].params
    again = other.next_trial(3)
    assert again is not None
    assert again.params == lost
    assert study.next_trial(3) is None
    for value, trial in enumerate((one, two, again)):
        study.study.tell(trial.number, value)
    assert [trial.value for trial in other.trials] == [2, 1, 0]


def test_a_process_that_dies_while_it_writes_a_trial_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = multiprocessing.get_context("fork").Process(target=_die_while_writing, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 9

    def refuse(_: float) -> None:
        raise AssertionError("it waits")

    monkeypatch.setattr(time, "sleep", refuse)
    assert study_in(tmp_path).next_trial(1) is not None


def _die_while_writing(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: os._exit(9))
        study_in(folder)


def test_candidates_after_a_kill_are_those_of_a_search_that_was_not_stopped(tmp_path: Path) -> None:
    candidates = []
    for kills in (0, 2):
        study, params = study_in(tmp_path / str(kills)), []
        for number in range(4):
            for _ in range(kills if number == 1 else 0):
                study.give_back(study.next_trial(4))  # type: ignore[arg-type]
            params.append(study.next_trial(4).params)
        candidates.append(params)
    assert candidates[0] == candidates[1]


def test_a_setting_that_lags_behind_is_pruned_on_the_validation_data(tmp_path: Path) -> None:
    space: dict[str, Any] = {"local.lr": CategoricalDistribution([0.3])}
    asked: Any = describe_settings(None, None, None, {**SMALL, "val_fraction": 0.2})
    study = MethodStudy(tmp_path, "fedavg", space, _asked(asked, space), 0)
    for _ in range(6):  # better than any run will be
        trial = study.next_trial(7)
        assert trial is not None
        for step in (1, 2):
            trial.report(0.99, step)
        study.study.tell(trial, 0.99)
    found = search_options(["fedavg"], space, [0], 7, tmp_path, asked).trials["fedavg"]
    assert [trial.state for trial in found].count(TrialState.PRUNED) == 1


def _asked(asked: Any, space: dict[str, Any]) -> str:
    from fedwcm.sweeps.tuning.tune import _plan, check_plans, describe_search

    plan = _plan("fedavg", space, asked)
    return describe_search(plan, check_plans([plan], space, Path())["fedavg"], space, [0])


def ended(diverged: bool, value: float = 0.0) -> optuna.trial.FrozenTrial:
    return optuna.trial.create_trial(
        params={"local.lr": 0.1},
        distributions={"local.lr": FloatDistribution(0, 1)},
        value=value,
        user_attrs={"diverged": True} if diverged else {"val_accuracy": [value], "test_accuracy": [value]},
    )


def test_the_winners_are_judged_by_seeds_that_the_search_has_not_seen(tmp_path: Path) -> None:
    trials = {"fedavg": [ended(False, 0.5)], "fedcm": [ended(True), ended(False)]}
    tuning = Tuning(tmp_path, [0, 3], trials)
    command = tuning.command
    assert "--methods 'fedavg[local.lr=0.1],fedcm[local.lr=0.1]' --seeds 4,5 " in command
    tuning.write()
    assert "--method 'fedavg[local.lr=0.1]' --seed 4\n" in (tmp_path / "tuning.md").read_text()
    page = (tmp_path / "report.html").read_text()
    assert all(text in page for text in ("How the search went", "Over local.lr", "What to run next"))
    assert "All options" not in page
    assert "<pre><code>fedwcm compare --config" in page


@pytest.mark.parametrize(
    ("select_by", "names", "values", "tested"),
    [
        ("accuracy", "val_accuracy,test_accuracy", [0.9, 0.85], "0.6000"),
        ("balanced_accuracy", "val_balanced_accuracy,balanced_accuracy", [0.5, 0.75], "0.4000"),
    ],
)
def test_the_metric_that_selects_a_round_chooses_the_options(
    select_by: str, names: str, values: list[float], tested: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One setting is better by accuracy, the other by balanced accuracy."""
    lines: list[float] = []
    pairs = iter([(0.9, 0.5), (0.85, 0.75)])

    def start(asked: Any, folder: Any, *, progress: Any, **_: Any) -> Any:
        measured = dict(zip(("val_accuracy", "val_balanced_accuracy"), next(pairs), strict=True))
        progress.round(1, round_record(1, **measured))
        return SimpleNamespace(outcome=summary(final_accuracy=0.6, balanced_accuracy=0.4, **measured))

    monkeypatch.setattr(trial_module, "start", start)
    asked: Any = describe_run("fedavg", None, {"run.select_by": select_by}, {})
    study = MethodStudy(tmp_path, "fedavg", {"local.lr": FloatDistribution(0, 1)}, "", 0)
    for value in values:
        trial = study.next_trial(2)
        assert trial is not None
        outcome = trial_module.run_trial([asked], lambda best, _: lines.append(best))
        output = outcome.tell(study, trial)
        assert output == f"validation {select_by.replace('_', ' ')} {value:.4f}"
    assert lines == values
    assert study.trials[0].value == max(values)
    Tuning(tmp_path, [0], {"fedavg": study.trials}).write()
    assert (tmp_path / "trials.csv").read_text().startswith(f"method,trial,state,{names},")
    page = (tmp_path / "tuning.md").read_text()
    assert f"Chosen by the mean validation {select_by.replace('_', ' ')} over" in page
    assert f"| {max(values):.4f} | {tested} |" in page


def test_a_setting_that_diverged_is_not_recommended(tmp_path: Path) -> None:
    tuning = Tuning(tmp_path, [0], {"fedavg": [ended(True), ended(True)]})
    assert tuning.best == {}
    assert "none: all trials diverged" in repr(tuning)
    with pytest.raises(ValueError, match="no winners"):
        assert tuning.command
    tuning.write()
    assert "fedwcm run" not in (tmp_path / "tuning.md").read_text()


def test_the_winner_is_spelled_as_a_method_with_its_options() -> None:
    trial = optuna.trial.create_trial(
        params={"method.alpha": 0.2, "local.lr": 0.1},
        distributions={"method.alpha": FloatDistribution(0, 1), "local.lr": FloatDistribution(0, 1)},
        value=1.0,
    )
    spelled = winner("fedcm[server_lr=0.5]", trial)
    assert method_settings(spelled) == {
        "method.name": "fedcm",
        "method.server_lr": 0.5,
        "method.alpha": 0.2,
        "local.lr": 0.1,
    }


def test_the_folder_of_a_search_is_not_taken_for_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fedwcm.tune(["fedavg"], {"lr": [0.1]}, tmp_path / "t", trials=1, **{**SMALL, "rounds": 1})
    folder = str(tmp_path / "t")
    for command in (["watch", folder], ["report", folder], ["run", "--out", folder, "--resume"]):
        assert main(command) == 2
        assert f"error: {folder} holds a search" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match=r"holds a search: its tuning\.md says"):
        fedwcm.open_run(folder)


def test_a_method_that_is_an_object_is_tuned(tmp_path: Path) -> None:
    found = fedwcm.tune(
        ["fedavg", FedProx], {"method.mu": "0.01:0.1", "lr": "0.05:0.1"}, tmp_path, trials=1, **SMALL
    )
    assert sorted(found.trials) == ["fedavg", "fedprox"]
    page = (tmp_path / "tuning.md").read_text()
    assert "--method 'fedprox[" in page
    fixed = fedwcm.tune([FedProx(mu=0.2), FedProx()], {"lr": "0.05:0.1"}, tmp_path / "b", trials=1, **SMALL)
    assert sorted(fixed.trials) == ["fedprox", "fedprox[mu=0.2]"]
    local = dataclass(frozen=True, kw_only=True)(type("Local", (FedProx,), {}))  # type: ignore[var-annotated]
    with pytest.raises(ValueError, match="a search names its methods"):
        fedwcm.tune([local], {"lr": "0.05:0.1"}, tmp_path / "c", trials=1, **SMALL)


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("run.select_by", ["accuracy", "balanced_accuracy"]),
        ("data.val_fraction", [0.05, 0.4]),
        ("data.imbalance", [1.0, 0.05]),
        ("partition.beta", [0.1, 10.0]),
    ],
)
def test_what_trials_are_compared_on_is_not_searched(option: str, values: list[object], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"search = '{re.escape(option)}' is not allowed"):
        fedwcm.tune(["fedavg"], {option: values}, tmp_path, trials=1, **SMALL)
