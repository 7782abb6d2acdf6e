"""The functions that an app provides: its model, its data, its test data."""

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import TypeVar

T = TypeVar("T")


def with_run_config(function: Callable[..., T], run_config: Mapping[str, object]) -> Callable[..., T]:
    """The function, with Flower's run-config bound to it if it has a parameter `run_config`."""
    return partial(function, run_config=run_config) if "run_config" in signature(function).parameters else function
