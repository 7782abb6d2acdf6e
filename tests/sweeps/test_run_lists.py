"""The lists of methods, seeds and grid values of a comparison: what is wrong is named."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedwcm
from fedwcm.cli import main

SMALL: dict[str, Any] = {"dataset": "digits", "clients": 3, "rounds": 1, "epochs": 1, "report": False}


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
