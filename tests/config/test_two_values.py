"""Two different values for one option are an error: none is dropped silently."""

from pathlib import Path
from typing import Any

import pytest

import fedwcm
from fedwcm.cli import main
from fedwcm.config.flags import config_from
from fedwcm.sweeps.tuning.study import ranges_in

COMPARE = ["compare", "--methods", "fedavg", "--dataset", "digits", "--out", "none"]
TUNE = ["tune", "--methods", "fedavg", "--dataset", "digits", "--out", "none"]


@pytest.mark.parametrize(
    ("flags", "settings", "message"),
    [
        ({"lr": 0.2}, {"local.lr": 0.1}, r"local\.lr is given twice, as 0\.2 and as 0\.1"),
        ({"seed": 6}, {"run.seed": 5}, r"run\.seed is given twice, as 6 and as 5"),
        ({"loss": "focal[gamma=1]"}, {"loss.gamma": 2}, r"loss\.gamma is given twice"),
        ({"loss": "focal"}, {"loss.name": "ldam"}, r"loss\.name is given twice, as 'focal' and as 'ldam'"),
        ({"epochs": 2}, {"local.steps": 3}, r"none with epochs = 2"),
    ],
)
def test_a_flag_and_a_setting_must_agree(flags: Any, settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_from("fedavg", settings=settings, **flags)


def test_a_value_may_be_given_twice() -> None:
    assert config_from("fedavg", settings={"local.lr": 1.0}, lr=1).local.lr == 1
    assert config_from("fedavg", settings={"run.target": [0.5, 0.5]}, loss="focal").run.target == (0.5, 0.5)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["run", "--seed", "6", "--set", "run.seed=5"], "run.seed is given twice, as 6 and as 5"),
        (["run", "--set", "run.seed=6", "--set", "run.seed=5"], "run.seed is given twice, as 6 and as 5"),
        ([*COMPARE, "--grid", "lr=0.1,0.3", "--grid", "lr=0.2"], "--grid lr is given twice"),
        ([*COMPARE, "--grid", "lr=0.1,0.3", "--grid", "local.lr=0.2"], "the grid has local.lr twice"),
        ([*COMPARE, "--grid", "lr=0.1,0.3", "--lr", "0.5"], "--lr 0.5 is given, and the grid varies it"),
        ([*COMPARE, "--grid", "lr=0.1", "--set", "local.lr=0.5", "--dry-run"], "local.lr = 0.5 is given"),
        ([*COMPARE, "--set", "run.seed=5"], "run.seed = 5 is not allowed"),
        ([*COMPARE, "--grid", "run.seed=5,6"], "the grid varies run.seed"),
        ([*TUNE, "--search", "lr=0.1:0.3", "--lr", "0.5"], "--lr 0.5 is given, and the search varies it"),
    ],
)
def test_the_command_line_refuses_two_values(
    command: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 2
    assert message in capsys.readouterr().err


def test_a_range_is_given_once() -> None:
    with pytest.raises(ValueError, match="--search lr is given twice"):
        ranges_in(["lr=0.1:0.2", "lr=0.3:0.4"])


def test_a_grid_varies_what_a_file_says(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[local]\nlr = 0.5\n[run]\nseed = 3\nrounds = 1\n")
    found = fedwcm.compare(["fedavg"], [0], tmp_path / "out", grid={"lr": [0.1]}, config=file, clients=3)
    assert [run.config.local.lr for runs in found.runs.values() for run in runs] == [0.1]
