"""A comparison is resolved and checked as a whole before its first run; what is wrong with a list is named."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedwcm
from fedwcm.api.description import describe_methods
from fedwcm.cli import main
from fedwcm.sweeps.estimate import Cost, Estimate, Forecast
from fedwcm.sweeps.plan import plan

SMALL: dict[str, Any] = {"dataset": "digits", "clients": 8, "epochs": 1, "rounds": 2}
FLAGS = ["--dataset", "digits", "--clients", "8", "--epochs", "1", "--rounds", "40"]


@pytest.mark.parametrize(
    ("methods", "grid", "message"),
    [
        (["fedavg", "fedwmc"], {}, "Did you mean 'fedwcm'"),
        (["fedcm", "fedavg"], {"method.alpha": [0.1]}, "unknown option of fedavg: 'method.alpha'"),
        (["fedavg"], {"local.lr": [0.1, -1]}, "lr = -1.0 is not allowed"),
        (["fedavg"], {"model.name": ["mlp", "mpl"]}, "mpl"),
        (["fedavg"], {"partition.name": ["equal", "natural"]}, "natural"),
        (["fedavg[local.lr=0.1]"], {"local.lr": [0.1, 0.2]}, "fixes local.lr"),
    ],
)
def test_a_run_that_could_not_start_is_found_before_the_first_one(
    methods: list[str], grid: dict[str, list[object]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        fedwcm.compare(methods, [0], tmp_path, grid=grid, **SMALL)
    assert not list(tmp_path.iterdir())


def test_a_grid_reaches_the_options_of_the_method() -> None:
    common: dict[str, object] = {}
    planned_runs = plan(
        describe_methods(["fedcm", "fedwcm"]), [0], {"method.alpha": [0.1, 0.5]}, common, Path("c")
    )
    assert [planned.config.method.options["alpha"] for planned in planned_runs] == [0.1, 0.5] * 2


def test_options_for_all_reach_every_method_and_its_own_come_first() -> None:
    common: dict[str, object] = {"method.alpha": 0.3, "local.lr": 0.2}
    planned_runs = plan(describe_methods(["fedcm", "fedcm[alpha=0.7]", "fedwcm"]), [0], {}, common, Path("c"))
    assert [planned.config.method.options["alpha"] for planned in planned_runs] == [0.3, 0.7, 0.3]
    assert {planned.config.local.lr for planned in planned_runs} == {0.2}


def test_a_recipe_keeps_what_makes_it_and_says_so() -> None:
    common: dict[str, object] = {"method.momentum_norm": "exact", "loss.gamma": 1.0, "loss.name": "focal"}
    with pytest.warns(UserWarning, match="fedcm-nominal keeps its own method.momentum_norm = nominal, not exact"):
        nominal, exact = plan(describe_methods(["fedcm-nominal", "fedcm"]), [0], {}, common, Path("c"))
    assert nominal.config.method.options["momentum_norm"] == "nominal"
    assert exact.config.method.options["momentum_norm"] == "exact"
    assert exact.config.loss.options == {"gamma": 1.0}


@pytest.mark.parametrize("before", [{"beta": 0.6}, {"imbalance": 0.5}, {"loss": "focal[gamma=5]"}])
def test_a_finished_run_with_other_options_is_not_taken_for_the_one_asked_for(
    before: dict[str, Any], tmp_path: Path
) -> None:
    now: Any = {"loss": "focal"} if "loss" in before else {}
    fedwcm.compare(["fedavg"], [0], tmp_path, report=False, **SMALL, **before)
    with pytest.raises(ValueError, match="cannot be resumed with another configuration"):
        fedwcm.compare(["fedavg"], [0], tmp_path, report=False, **SMALL, **now)
    with pytest.raises(ValueError, match="cannot be resumed with another configuration"):
        fedwcm.compare(["fedavg"], [1, 0], tmp_path, report=False, **SMALL, **now)
    fedwcm.compare(["fedavg"], [0], tmp_path, report=False, **SMALL, **before)


def test_a_dry_run_lists_the_runs_with_their_cost_and_writes_nothing(tmp_path: Path) -> None:
    """The tests themselves run with one thread: a process of its own has as many as a user's."""
    out, grid = tmp_path / "c", {"lr": [0.05, 0.1]}
    command = ["compare", "--methods", "fedavg,scaffold", "--seeds", "0,1", "--grid", "lr=0.05,0.1", *FLAGS]
    ended = subprocess.run(
        [sys.executable, "-m", "fedwcm", *command, "--out", str(out), "--dry-run"],
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count(" GB") == 4 + 1
    assert "scaffold (local.lr=0.05)" in ended.stdout
    assert "8 runs: about" in ended.stdout
    forecast = fedwcm.compare(["fedavg"], [0, 1], out, grid=grid, dry_run=True, **SMALL)
    assert [(row.label, row.runs) for row in forecast.rows] == [
        (f"fedavg (local.lr={lr})", 2) for lr in grid["lr"]
    ]
    assert forecast.total.seconds > 0
    assert not out.exists()


def test_the_total_shares_the_time_and_adds_the_memory_of_what_runs_together() -> None:
    rows = (
        Estimate("a", 9, 3, 1, Cost(10.0, 5)),
        Estimate("b", 9, 1, 0, Cost(30.0, 7)),
        Estimate("c", 9, 1, 1, None),
    )
    assert Forecast(rows, 1).total == Cost(50.0, 7)
    assert Forecast(rows, 2).total == Cost(30.0, 12)  # the longest run cannot be shared
    assert Forecast(rows, 3).total == Cost(30.0, 17)


def test_a_dry_run_needs_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", "--methods", "fedavg", "--seeds", "0", "--jobs", "0", "--dry-run"]
    assert main([*command, "--out", str(tmp_path)]) == 2
    assert "jobs = 0 is not allowed: it must be at least 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("methods", "seeds", "grid", "message"),
    [
        (["fedavg"], [0, 0, 1], {}, r"seeds has 0 2 times: leave it in once"),
        (["fedavg"], [0], {"lr": [0.1, 0.1]}, r"grid\['lr'\] has 0\.1 2 times"),
        (["fedavg", "fedavg"], [0], {}, r"methods has 'fedavg' 2 times"),
        ([], [0], {}, "methods is empty"),
        ("", [0], {}, "methods is empty"),
        (["fedavg"], [], {}, "seeds is empty"),
        (["fedavg"], [0], {"lr": []}, r"grid\['lr'\] is empty"),
        (["fedavg"], 3, {}, "seeds = 3 is not allowed: it must be a list of whole numbers"),
        (["fedavg"], [1.5], {}, r"seeds = \[1\.5\] is not allowed: it must be a list of whole numbers"),
        (["fedavg"], [0], {"lr": 0.1}, r"grid\['lr'\] = 0\.1 is not allowed: it must be a list of values"),
        (["fedavg"], [0], {"lr": "0.1,0.2"}, r"grid\['lr'\] = '0\.1,0\.2' is not allowed"),
        (3, [0], {}, "methods = 3 is not allowed: it must be a list of methods"),
    ],
)
def test_a_list_that_makes_no_runs_is_refused_by_name(
    methods: Any, seeds: Any, grid: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        fedwcm.compare(methods, seeds, tmp_path, grid=grid, **SMALL)


def test_methods_may_be_text_and_seeds_of_numpy(tmp_path: Path) -> None:
    grid = {"lr": np.array([0.1])}
    found = fedwcm.compare("fedavg, fedcm[alpha=0.2]", np.arange(1), tmp_path, grid=grid, **SMALL)  # type: ignore[call-overload]
    assert {label: len(runs) for label, runs in found.runs.items()} == {
        "fedavg (local.lr=0.1)": 1,
        "fedcm[alpha=0.2] (local.lr=0.1)": 1,
    }


@pytest.mark.parametrize("command", ["compare", "tune"])
def test_the_command_line_says_what_is_empty(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    search = ["--search", "lr=0.1:0.2"] if command == "tune" else []
    common = ["--dataset", "digits", "--out", "none", *search]
    assert main([command, "--methods", "", *common]) == 2
    assert main([command, "--methods", "fedavg", "--seeds", "", *common]) == 2
    printed = capsys.readouterr().err
    assert "methods is empty" in printed
    assert "seeds is empty" in printed


@pytest.mark.parametrize(
    "command", [["run", "--method", "fedavg"], ["compare", "--methods", "fedavg"], ["tune", "--methods", "fedavg"]]
)
def test_a_file_is_no_folder(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    search = ["--search", "lr=0.1:0.2"] if command[0] == "tune" else []
    small = ["--dataset", "digits", "--clients", "3", "--rounds", "1"]
    assert main([*command, *search, *small, "--out", str(tmp_path / "notes.txt")]) == 2
    assert "is not allowed: it must be a folder: this is a file" in capsys.readouterr().err
    assert (tmp_path / "notes.txt").read_text() == "mine"
