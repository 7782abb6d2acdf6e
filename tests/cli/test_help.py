"""Help, lists, suggestions and completion."""

import argparse
import inspect
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedwcm.cli import COMMANDS, command_line, main
from fedwcm.cli.common import add_options, parse_seeds
from fedwcm.cli.output import prepare_streams
from fedwcm.cli.parser import add_completers
from fedwcm.config.flags import FLAGS, OPTIONS
from fedwcm.config.options import parse_value
from fedwcm.config.schema import Config
from fedwcm.config.settings import from_settings, to_settings
from fedwcm.models import MODEL_OPTIONS, MODELS


def said_by(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    printed = capsys.readouterr()
    assert ended.value.code == (0 if {"--help", "--help-all"} & {*arguments} else 2)
    return printed.out + printed.err


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["run", "--epoch", "3"], "--epochs"),
        (["compare", "--methods", "fedavg", "--out", "x", "--jbos=2"], "--jobs"),
        (["comapre"], "'compare'"),
        (["list", "loses"], "'losses'"),
    ],
)
def test_a_mistyped_word_gets_a_suggestion(
    arguments: list[str], suggestion: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"id you mean {suggestion}?" in said_by(arguments, capsys)


def test_help_has_groups_defaults_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    whole = said_by(["run", "--help-all"], capsys)
    for part in ("data and clients:", "model and local training:", "the run:", "examples:", "default 50"):
        assert part in " ".join(whole.split())
    brief = said_by(["run", "--help"], capsys)
    assert brief.count("\n") < 52 < whole.count("\n"), "what most people need fits a screen"
    assert "--val-fraction" not in brief
    assert said_by(["run", "--help-all"], capsys) == whole
    assert said_by(["tune", "--help"], capsys).count("\n") < 60


def test_the_command_alone_shows_all_commands_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    names = command_line()._subparsers._group_actions[0].choices
    assert names
    assert all(f"\n  {name:<10} " in text for name in names)
    assert all(f"\n{title}:" in text for title in COMMANDS)


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        (["--participation", "3"], "--participation 3 is not allowed"),
        (["--clients", "0"], "--clients 0 is not allowed"),
        (["--imbalance", "100"], "for 1:100 give 0.01"),
        (["--rounds", "2", "--set", "local.warmup=5"], "below --rounds 2: the learning rate"),
        (["--backend", "vectorized", "--set", "run.workers=2"], "without run.backend = auto, parallel or ray"),
        (["--set", "lr=0.1"], "Did you mean 'local.lr'?"),
        (["--set", "participation.fraction=3"], "participation.fraction = 3"),
    ],
)
def test_an_error_has_the_words_that_were_typed(
    options: list[str], printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--dataset", "digits", *options]) == 2
    assert printed in capsys.readouterr().err


def test_seeds_may_be_a_range() -> None:
    assert parse_seeds("0-3,7") == [0, 1, 2, 3, 7]
    for wrong in ("3-0", "-1", "1-", "a"):
        with pytest.raises(ValueError, match="--seeds"):
            parse_seeds(wrong)


@pytest.mark.parametrize(("encoding", "text"), [("ascii", "0.9 +/- 0.1 _# ?"), ("latin-1", "0.9 ± 0.1 _# ?")])
def test_a_terminal_that_is_not_utf8_is_no_error(
    encoding: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(terminal, encoding=encoding))
    prepare_streams()
    print("0.9 ± 0.1 ▁█ 雪", flush=True)
    assert terminal.getvalue().decode(encoding).strip() == text


def test_every_option_is_listed_with_a_meaning_and_the_default_that_it_has() -> None:
    assert all(option.about for option in OPTIONS.values())
    for key, value in to_settings(Config()).items():
        if OPTIONS[key].default != "none":  # an empty list, or what depends on another option
            assert convert_text(OPTIONS[key].default, key) == value
    assert OPTIONS["partition.clients"].default == "100"


@pytest.mark.parametrize("key", ["partition.beta", "model.width", "method.alpha", "loss.gamma"])
def test_options_of_components_are_listed_with_meaning_and_owners(
    key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "options"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{key} ")]
    assert lines
    assert all(re.fullmatch(rf"{key} +\S.*\[.+; default .+; of .+\]", line) for line in lines)


def test_every_option_of_every_model_has_a_meaning() -> None:
    for factory in MODELS.values():
        parameters = set(inspect.signature(factory).parameters) - {"input_shape", "classes"}
        assert parameters <= set(MODEL_OPTIONS)


def convert_text(text: str, key: str) -> object:
    return to_settings(from_settings({key: text if key in TEXTS else parse_value(text)}))[key]


TEXTS = {option.key for option in OPTIONS.values() if option.kind.startswith(("text", "a list", "'"))}


@pytest.mark.parametrize(
    ("entry", "output"),
    [
        (["methods", "fedwcm+longtail"], ["settings:", "loss.name", "prior_ce"]),
        (["recipes", "fedwcm+longtail"], ["settings:", "loss.name", "prior_ce"]),
        (["methods", "auto"], ["the best of", "validation data"]),
        (["methods", "fedcm"], ["options:", "method.alpha"]),
        (["losses", "focal"], ["options:", "loss.gamma"]),
        (["options", "lr"], ["local.lr "]),
        (["options", "batch-size"], ["local.batch_size"]),
        (["options", "server"], ["server.ema"]),
        (["options", "method.alpha"], ["method.alpha"]),
    ],
)
def test_list_describes_entries_sections_and_flags(
    entry: list[str], output: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", *entry]) == 0
    printed = capsys.readouterr().out
    assert all(text in printed for text in output)
    assert len(printed.splitlines()) < 30
    if "." not in (name := entry[1]) and name != "auto":
        assert main(["list", entry[0], f"{name}x"]) == 2
        assert "Did you mean" in capsys.readouterr().err


@pytest.mark.parametrize(
    "what", ["methods", "losses", "samplers", "datasets", "partitions", "models", "recipes", "trackers"]
)
def test_list_prints_a_line_for_each(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert f"\n{what} " in f"\n{capsys.readouterr().out}"
    assert main(["list", what]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines)
    assert what != "partitions" or len({line.split(maxsplit=1)[1] for line in lines}) == len(lines)


def test_the_shell_completes_flags(tmp_path: Path) -> None:
    line, answer = "fedwcm compare --meth", tmp_path / "answer"
    variables = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    variables["_ARGCOMPLETE_STDOUT_FILENAME"] = str(answer)
    command = [sys.executable, "-c", "import fedwcm.cli; fedwcm.cli.main([])"]
    subprocess.run(command, env={**os.environ, **variables}, check=False, timeout=120)
    assert answer.read_text().split() == ["--methods"]


def test_names_and_options_are_completed() -> None:
    parser = argparse.ArgumentParser()
    flags = {flag: parser.add_argument(flag) for flag in ("--method", "--methods", "--set", "--rounds")}
    add_completers(parser)
    complete = {flag: getattr(action, "completer", None) for flag, action in flags.items()}
    assert "fedwcm+prior_ce" in complete["--method"]("fedwcm+p")  # type: ignore[misc]
    assert {"fedavg,fedcm", "fedavg,fedcm-nominal"} <= set(complete["--methods"]("fedavg,fedc"))  # type: ignore[misc]
    assert "local.lr=" in complete["--set"]("local.l")  # type: ignore[misc]
    assert complete["--rounds"] is None


def test_runs_at_a_time_warn_once_and_say_how_each_ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # 585 samples on 45 clients: 13 each, so two steps of 10 where 1.3 are divided by.
    command = ["compare", "--methods", "fedcm-nominal,fedavg[local.lr=1e18]", "--seeds", "0,1", "--jobs", "2"]
    options = ["--clients", "45", "--epochs", "1", "--batch-size", "10", "--rounds", "2", "--no-report"]
    assert main([*command, *options, "--out", str(tmp_path)]) == 0
    printed = capfd.readouterr().err
    assert printed.count("warning: the momentum of fedcm-nominal (fedcm) starts") == 1
    assert printed.count("fedavg[local.lr=1e18], seed 0: diverged after round") == 1
    assert "(4/4)" in printed
    assert "fedcm-nominal, seed 1: accuracy 0." in printed


def test_every_common_option_has_a_flag() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    assert {f"--{name.replace('_', '-')}" for name in FLAGS} <= parser._option_string_actions.keys()
