"""The lists that make the runs of a comparison or a search: methods, seeds and the values of a grid."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedwcm.config.component_text import split_list
from fedwcm.core.checks import require
from fedwcm.core.method import Method


def method_list(methods: Sequence[str | Method | type[Method]]) -> list[Any]:
    """Return the methods, which may be text `a,b`; refuse an empty list and a name that is there twice."""
    given = split_list(methods) if isinstance(methods, str) else methods
    found = _listed("methods", given, "methods")
    _refuse_repeated("methods", [method for method in found if isinstance(method, str)])
    return found


def seed_list(seeds: Sequence[int]) -> list[int]:
    """Return the seeds as integers; refuse an empty list and a seed that is there twice."""
    found = _listed("seeds", seeds, "whole numbers")
    for seed in found:
        require(isinstance(seed, int) and not isinstance(seed, bool), "seeds", seeds, "a list of whole numbers")
    _refuse_repeated("seeds", found)
    return found


def grid_lists(grid: Mapping[str, Sequence[object]]) -> dict[str, list[object]]:
    """Return the values of each option of a grid; refuse an empty list and a value that is there twice."""
    found = {name: _listed(f"grid[{name!r}]", values, "values") for name, values in grid.items()}
    for name, values in found.items():
        _refuse_repeated(f"grid[{name!r}]", values)
    return found


def _listed(where: str, values: Any, of: str) -> list[Any]:
    is_list = isinstance(values, Iterable) and not isinstance(values, (str, bytes, Mapping))
    require(is_list, where, values, f"a list of {of}")
    found = [value.item() if isinstance(value, np.generic) else value for value in values]
    if not found:
        raise ValueError(f"{where} is empty: it must hold at least one of the {of}")
    return found


def _refuse_repeated(where: str, values: Iterable[Any]) -> None:
    for text, times in Counter(map(repr, values)).items():
        if times > 1:
            raise ValueError(f"{where} has {text} {times} times: leave it in once")
