"""The functions that an app hands over: its model, its data, its test data."""

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import TypeVar

T = TypeVar("T")


def with_run_config(function: Callable[..., T], run_config: Mapping[str, object]) -> Callable[..., T]:
    """The function, with Flower's run-config if it takes a parameter of this name."""
    return partial(function, run_config=run_config) if "run_config" in signature(function).parameters else function
