"""An option is declared once: flags, keywords, settings, the list and the page of all options derive from it."""

import argparse
import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path

import pytest
from tools.make_options import KEYWORDS, PAGE, keyword_module, options_page

import fedwcm
from fedwcm.cli import command_line, main
from tests.project import ROOT


def test_what_is_derived_from_the_options_is_up_to_date() -> None:
    """If not: python -m tools.make_options."""
    assert ast.dump(ast.parse(KEYWORDS.read_text())) == ast.dump(ast.parse(keyword_module()))
    assert PAGE.read_text() == options_page()


EVERYWHERE = """
import contextlib, io, sys
from pathlib import Path
from fedwcm.cli import command_line, main
from fedwcm.config.flags import config_from
from fedwcm.config.settings import parse_assignment, write_toml
from fedwcm.flower.app.options import read
from tools.make_options import keyword_module, options_page

def printed(*words):
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        main(list(words))
    return " ".join(text.getvalue().split())

assert "--whistles N tunes to whistle" in printed("run", "--help-all")
assert command_line().parse_args(["run", "--whistles", "3"]).whistles == "3"
assert "run.whistles" in printed("list", "options", "run")
assert "tunes to whistle" in printed("list", "options", "whistles")
assert "    whistles: int | None\\n" in keyword_module()
row = "| `run.whistles` | `--whistles` | a whole number or none | `none` | tunes to whistle; or none. |"
assert row in options_page()
config = config_from(None, None, dict([parse_assignment("run.whistles=3")]))
assert config.run.whistles == config_from(whistles=3).run.whistles == 3
write_toml(config, Path(sys.argv[1]))
assert config_from(None, Path(sys.argv[1])).run.whistles == 3
assert read({"run.whistles": 3}).config.run.whistles == 3
"""


def test_a_new_option_is_everywhere_by_one_edit(tmp_path: Path) -> None:
    unneeded = shutil.ignore_patterns("__pycache__", "vendor")
    shutil.copytree(ROOT / "src/fedwcm", tmp_path / "fedwcm", ignore=unneeded)
    schema = tmp_path / "fedwcm/config/schema.py"
    text = schema.read_text()
    meaning = "        rounds: communication rounds.\n"
    field = "    rounds: Flagged[Count] = 100\n"
    assert text.count(meaning) == text.count(field) == 1
    text = text.replace(meaning, f"{meaning}        whistles: tunes to whistle; or none.\n")
    schema.write_text(text.replace(field, f"{field}    whistles: Flagged[int | None] = None\n"))
    command = [sys.executable, "-c", EVERYWHERE, str(tmp_path / "c.toml")]
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run(command, env={**os.environ, **path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


FUNCTIONS: dict[str, Callable[..., object]] = {
    **{
        name: getattr(fedwcm, name)
        for name in ("run", "compare", "tune", "study", "reproduce", "watch", "report", "partition")
    },
    **{name: getattr(fedwcm, name) for name in ("evaluate", "predict", "export", "bench", "doctor")},
    **{"flower init": fedwcm.flower_init, "flower check": fedwcm.flower_check, "list": fedwcm.list_names},
}
"""The function of every command."""

OTHERWISE = {
    **{"set": "settings", "no_report": "report", "quiet": "progress"},
    **dict.fromkeys(["json", "confusion"], "the result"),
    **dict.fromkeys(["calibrate", "operating_point", "validation", "personalize", "list"], "another function"),
}
"""Flags that functions have under another name, or that are another function."""


def _parsers(
    parser: argparse.ArgumentParser, name: str = ""
) -> typing.Iterator[tuple[str, argparse.ArgumentParser]]:
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for group in groups:
        for word, inner in group.choices.items():
            yield from _parsers(inner, f"{name} {word}".strip())
    if not groups:
        yield name, parser


def test_every_command_is_a_function_with_its_keywords() -> None:
    parsers = dict(_parsers(command_line()))
    assert parsers.keys() == FUNCTIONS.keys()
    for name, function in FUNCTIONS.items():
        flags = {action.dest for action in parsers[name]._actions} - {"help", "help_all", *OTHERWISE}
        own = inspect.signature(function).parameters
        more = function.__annotations__.get("options")
        options = typing.get_args(more)[0].__annotations__ if more else {}
        picture = {"compare", "out"} if name == "partition" else set()  # fedwcm.partitions, and no picture
        assert flags <= {*own, *options, *picture}, name


@pytest.mark.parametrize("function", [*FUNCTIONS.values(), fedwcm.partitions, fedwcm.load_model])
def test_every_keyword_is_documented(function: Callable[..., object]) -> None:
    described = re.findall(r"^    (\w+): \S", str(inspect.getdoc(function)), flags=re.MULTILINE)
    assert described == list(inspect.signature(function).parameters)


def test_a_misspelt_keyword_gets_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"unknown option 'roundz'\. Did you mean 'rounds'"):
        fedwcm.run("fedavg", roundz=3)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="unknown option of a partition: 'rounds'"):
        fedwcm.partition(rounds=3)  # type: ignore[call-arg]


def test_a_name_that_looks_like_a_number_stays_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partition", "--dataset", "digits", "--group", "1"]) == 2
    assert "data.group = 1 " not in capsys.readouterr().err
