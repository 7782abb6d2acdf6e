"""Keywords of the Python functions are the flags: the same names, the types of their options, all documented."""

import inspect
import re
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

import fedwcm
from fedwcm.config import arguments
from fedwcm.config.flags import COMPARE_FLAGS, FLAGS, PARTITION_FLAGS
from fedwcm.config.schema import COMPONENTS, SECTIONS

FUNCTIONS: dict[str, tuple[Callable[..., object], tuple[str, ...]]] = {
    "run": (fedwcm.run, tuple(FLAGS)),
    "compare": (fedwcm.compare, COMPARE_FLAGS),
    "partition": (fedwcm.partition, PARTITION_FLAGS),
    "tune": (fedwcm.tune, COMPARE_FLAGS),
    "partitions": (fedwcm.partitions, tuple(name for name in PARTITION_FLAGS if name != "partition")),
}
OBJECTS = {
    "dataset": arguments.DataLike,
    "model": arguments.ModelLike,
    "loss": arguments.LossLike,
    "sampler": arguments.SamplerLike,
    "partition": arguments.PartitionLike,
    "clients": arguments.ClientsLike,
}
"""Options that take objects beside the text, or the number, of their flag."""

OTHERS = {"method", "methods", "seeds", "out", "grid", "jobs", "resume", "trust", "report", "config", "settings"}
OTHERS |= {"search", "space", "trials"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_keywords_are_the_flags_in_their_order(name: str) -> None:
    function, flags = FUNCTIONS[name]
    keywords = [key for key in inspect.signature(function).parameters if key not in {*OTHERS, "progress", "ways"}]
    assert keywords == list(flags)
    kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_type_of_a_keyword_is_that_of_its_option(name: str) -> None:
    function, flags = FUNCTIONS[name]
    hints = typing.get_type_hints(function, localns={"Tuning": object})  # its module needs Optuna
    for flag in flags:
        assert members(hints[flag]) == members(expected(flag)) | {type(None)}, flag


@pytest.mark.parametrize(
    "function", [*(f for f, _ in FUNCTIONS.values()), fedwcm.evaluate, fedwcm.predict, fedwcm.load]
)
def test_every_keyword_is_documented(function: Callable[..., object]) -> None:
    described = re.findall(r"^        (\w+): \S", str(function.__doc__), flags=re.MULTILINE)
    assert described == list(inspect.signature(function).parameters)


def expected(flag: str) -> Any:
    """The type that the flag's option says; a list may be any sequence, and `none` is said in words."""
    section, _, option = FLAGS[flag].key.partition(".")
    if flag in OBJECTS:
        return OBJECTS[flag]
    if section in COMPONENTS:
        return {"beta": float}[option]
    kind = typing.get_type_hints(SECTIONS[section])[option]
    if flag == "imbalance":  # what is not given is `auto`
        return float | Literal["none"]
    return kind | Path if flag == "data_dir" else kind


def members(kind: Any) -> set[Any]:
    """The members of a union, lists as sequences."""
    kinds = typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)
    return {as_sequence(each) for each in kinds}


def as_sequence(kind: Any) -> Any:
    if typing.get_origin(kind) is tuple and typing.get_args(kind)[1:] == (...,):
        return Sequence[as_sequence(typing.get_args(kind)[0])]  # type: ignore[misc]
    return kind


def test_objects_are_taken_beside_text() -> None:
    for flag, kind in OBJECTS.items():
        assert (int if flag == "clients" else str) in members(kind)
