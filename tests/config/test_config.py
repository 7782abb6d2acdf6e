"""Options: precedence, round trips, and errors that name what is wrong."""

from pathlib import Path
from typing import Any

import pytest

import fedwcm
from fedwcm.cli import main
from fedwcm.config.flags import config_from, settings_from
from fedwcm.config.schema import Config
from fedwcm.config.settings import (
    differences,
    from_settings,
    method_settings,
    overlay,
    parse_assignment,
    read_toml,
    split_list,
    to_settings,
    write_toml,
)
from fedwcm.sweeps.tuning.study import ranges_in


def test_defaults_are_those_of_the_dataclasses() -> None:
    assert from_settings({}) == Config()


def test_written_configuration_reads_back_the_same(tmp_path: Path) -> None:
    settings = {
        "method.name": "fedwcm",
        "run.target": [0.5, 0.5],
        "local.clip": 10.0,
        "data.augment": True,
        "partition.name": "fedgrab",
        "partition.min_samples": 3,
        "model.hidden": [32],
        "run.seed": 7,
    }
    config = from_settings(settings)
    write_toml(config, tmp_path / "c.toml")
    assert from_settings(read_toml(tmp_path / "c.toml")) == config


def test_none_is_left_out_and_can_be_said(tmp_path: Path) -> None:
    config = from_settings({"local.clip": "none", "data.imbalance": "none"})
    assert config.local.clip is None
    assert "local.clip" not in to_settings(config)


def test_flags_and_settings_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[local]\nlr = 0.5\nepochs = 9\n[run]\nrounds = 3\n[method]\nname = "fedcm"\nalpha = 0.3\n')
    config = config_from(None, file, {"local.lr": 0.01}, epochs=2, rounds=4)
    assert (config.local.lr, config.local.epochs, config.run.rounds) == (0.01, 2, 4)
    assert config.method.options == {"alpha": 0.3}


@pytest.mark.parametrize(
    ("text", "value"), [(".3", 0.3), ("1.", 1.0), ("+.5", 0.5), ("-.5", -0.5), ("1.e-3", 0.001)]
)
def test_a_number_needs_no_digit_beside_its_point(text: str, value: float) -> None:
    assert parse_assignment(f"local.lr={text}") == ("local.lr", value)


@pytest.mark.parametrize("text", [".", "007", "1.2.3", "e5", ".csv", "1.x", "+"])
def test_text_that_is_no_number_stays_text(text: str) -> None:
    assert parse_assignment(f"data.label={text}") == ("data.label", text)


def test_another_method_does_not_inherit_the_options_of_the_old_one() -> None:
    base = {"method.name": "fedcm", "method.alpha": 0.3, "local.lr": 0.1}
    assert overlay(base, {"method.name": "fedavg"}) == {"method.name": "fedavg", "local.lr": 0.1}
    assert overlay(base, {"method.name": "fedcm"}) == base


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("fedcm", {"method.name": "fedcm"}),
        (
            "fedcm[momentum_norm=nominal, alpha=0.2]",
            {"method.name": "fedcm", "method.momentum_norm": "nominal", "method.alpha": 0.2},
        ),
        ("fedavg[local.lr=0.03]", {"method.name": "fedavg", "local.lr": 0.03}),
        ("fedwcm[run.target=[0.5,0.5]]", {"method.name": "fedwcm", "run.target": [0.5, 0.5]}),
        ("fedcm-nominal", {"method.name": "fedcm", "method.momentum_norm": "nominal"}),
        (
            "fedcm-nominal[alpha=0.5]",
            {"method.name": "fedcm", "method.momentum_norm": "nominal", "method.alpha": 0.5},
        ),
    ],
)
def test_method_with_options_in_brackets(spec: str, expected: dict[str, object]) -> None:
    assert method_settings(spec) == expected


def test_lists_are_split_at_commas_outside_brackets() -> None:
    assert split_list("fedcm, fedcm[a=1,b=[1,2]] ,fedwcm") == ["fedcm", "fedcm[a=1,b=[1,2]]", "fedwcm"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"local.lrr": 0.1}, r"local\.lrr.*Did you mean 'local\.lr'"),
        ({"locl.lr": 0.1}, r"locl\.lr.*Did you mean 'local\.lr'"),
        ({"local.lr": "fast"}, r"local\.lr = 'fast'.*a number"),
        ({"local.lr": -1}, r"lr = -1\.0 is not allowed: it must be positive"),
        ({"local.epochs": 1.5}, r"local\.epochs = 1\.5.*a whole number"),
        ({"local.epochs": 2, "local.steps": 9}, r"local\.steps = 9 is not allowed.*none with epochs = 2"),
        ({"data.augment": 1}, r"data\.augment = 1.*true or false"),
        ({"participation.fraction": 0}, r"fraction = 0\.0.*\(0, 1\]"),
        ({"data.imbalance": 2}, r"imbalance = 2\.0"),
        ({"run.seed": -3}, r"seed = -3"),
        ({"data.profile": "linear"}, r"data\.profile.*exponential"),
    ],
)
def test_a_wrong_option_is_refused_by_name(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_settings(settings)


def test_steps_replace_the_epochs_of_a_file_and_epochs_its_steps() -> None:
    steps = config_from(config=from_settings({"local.epochs": 2}), steps=9)
    assert (steps.local.epochs, steps.local.steps) == (None, 9)
    epochs = config_from(config=steps, epochs=4)
    assert (epochs.local.epochs, epochs.local.steps) == (4, None)
    assert from_settings({}).local.epochs == 5


def test_unknown_flag_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match="Did you mean 'batch_size'"):
        settings_from(None, None, None, {"batchsize": 3})


@pytest.mark.parametrize("text", ["x", "=3", ""])
def test_assignment_needs_a_key_and_an_equals_sign(text: str) -> None:
    with pytest.raises(ValueError, match="key=value"):
        parse_assignment(text)


def test_unclosed_bracket_is_an_error() -> None:
    with pytest.raises(ValueError, match="not closed"):
        method_settings("fedcm[alpha=1")
    with pytest.raises(ValueError, match=r"the brackets come last: fedcm\+wcm\[alpha=0\.2\]"):
        method_settings("fedcm[alpha=0.2]+wcm")


def test_differences_name_the_option_and_both_values_and_pass_over_the_incidental() -> None:
    one = from_settings({"local.lr": 0.1, "run.workers": 1})
    other = from_settings({"local.lr": 0.2, "run.workers": 2, "local.clip": 5.0})
    assert differences(one, other) == ["local.clip: none is now 5.0", "local.lr: 0.1 is now 0.2"]


def test_a_file_that_is_not_toml_or_has_a_stray_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("lr 0.1")
    with pytest.raises(ValueError, match="not TOML"):
        read_toml(file)
    file.write_text("lr = 0.1")
    with pytest.raises(ValueError, match="unknown section"):
        read_toml(file)


# --- two values for one option: none is dropped silently ------------------------------------------------

COMPARE = ["compare", "--methods", "fedavg", "--dataset", "digits", "--out", "none"]
TUNE = ["tune", "--methods", "fedavg", "--dataset", "digits", "--out", "none"]


@pytest.mark.parametrize(
    ("flags", "settings", "message"),
    [
        ({"lr": 0.2}, {"local.lr": 0.1}, r"local\.lr is given twice, as 0\.2 and as 0\.1"),
        ({"lr": 0.2, "local.lr": 0.1}, {}, r"local\.lr is given twice, as 0\.2 and as 0\.1"),
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
