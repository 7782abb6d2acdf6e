"""An option is declared once: flags, keywords, settings, the list and the page of all options derive from it."""

import argparse
import ast
import inspect
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from tools.make_options import KEYWORDS, PAGE, keyword_module, options_page

import fedwcm
from fedwcm.api.keywords import CompareKeywords, PartitionKeywords, RunKeywords
from fedwcm.cli import command_line, main
from fedwcm.config.flags import COMPARE_FLAGS, FLAGS, PARTITION_FLAGS, all_options, declared_flags
from fedwcm.config.schema import SECTIONS, RunOptions
from fedwcm.config.settings import from_settings, to_settings
from fedwcm.utils.field_types import Flag


@pytest.mark.parametrize(
    ("keywords", "flags"),
    [(RunKeywords, FLAGS), (CompareKeywords, COMPARE_FLAGS), (PartitionKeywords, PARTITION_FLAGS)],
)
def test_keywords_are_the_flags(keywords: Any, flags: typing.Iterable[str]) -> None:
    assert set(keywords.__annotations__) == set(flags)


def test_what_is_derived_from_the_options_is_up_to_date() -> None:
    """If not: python -m tools.make_options."""
    assert ast.dump(ast.parse(KEYWORDS.read_text())) == ast.dump(ast.parse(keyword_module()))
    assert PAGE.read_text() == options_page()


@dataclass(frozen=True, kw_only=True)
class MoreOptions(RunOptions):
    """The options of a run, and one more.

    Args:
        whistles: tunes to whistle; or none.
    """

    whistles: Annotated[int | None, Flag("tunes")] = None


def test_a_new_option_is_everywhere_by_one_declaration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SECTIONS, "run", MoreOptions)
    all_options.cache_clear()
    try:
        assert declared_flags()["tunes"].key == "run.whistles"
        assert declared_flags()["tunes"].help == "tunes to whistle"
        assert "    tunes: int | None\n" in keyword_module()
        row = "| `run.whistles` | `--tunes` | a whole number or none | `none` | tunes to whistle; or none. |"
        assert row in options_page()
        assert to_settings(from_settings({"run.whistles": 3}))["run.whistles"] == 3
    finally:
        all_options.cache_clear()


FUNCTIONS: dict[str, Callable[..., object]] = {
    **{
        name: getattr(fedwcm, name)
        for name in ("run", "compare", "tune", "reproduce", "watch", "report", "partition")
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
    described = re.findall(r"^        (\w+): \S", str(function.__doc__), flags=re.MULTILINE)
    assert described == list(inspect.signature(function).parameters)


def test_a_misspelt_keyword_gets_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"unknown option 'roundz'\. Did you mean 'rounds'"):
        fedwcm.run("fedavg", roundz=3)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="unknown option of a partition: 'rounds'"):
        fedwcm.partition(rounds=3)  # type: ignore[call-arg]


def test_a_name_that_looks_like_a_number_stays_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partition", "--dataset", "digits", "--group", "1"]) == 2
    assert "data.group = 1 " not in capsys.readouterr().err
