"""Models that are not part of this package: named as `package.module:factory`."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from torch import nn

from fedwcm.models.checks import require_known

BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@contextmanager
def importable_current_directory() -> Iterator[None]:
    """Let imports find modules of the current directory, as `python -m` does, and leave no trace.

    A console script, unlike `python -m`, does not search the current directory by itself.
    """
    here = str(Path.cwd())
    if here in sys.path or "" in sys.path:
        yield
        return
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with suppress(ValueError):  # the imported module may have removed the entry itself
            sys.path.remove(here)


def load_factory(name: str) -> Callable[..., object]:
    """Return the callable at `package.module:factory`."""
    try:
        factory: object = resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"model {name!r} cannot be loaded: {error}; allowed is package.module:factory, "
            "from the current directory or an installed package"
        ) from error
    if not callable(factory):
        raise ValueError(f"model {name!r} is of type {type(factory).__name__}: allowed are functions and classes")
    if isinstance(factory, type) and not issubclass(factory, nn.Module):
        raise ValueError(f"model {name!r} is a class that is no torch.nn.Module: it is not called")
    return factory


def arguments(
    name: str, factory: Callable[..., object], offered: Mapping[str, object], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the keywords to call `factory` with: those of `offered` that it names, and all `options`.

    A parameter counts as named if it stands in the signature: `**kwargs` takes any option but nothing
    of `offered`, because a factory that passes its keywords on need not know those two.
    """
    signature = inspect.signature(factory)
    kinds = {key: parameter.kind for key, parameter in signature.parameters.items()}
    named = [key for key, kind in kinds.items() if kind in BY_KEYWORD]
    if inspect.Parameter.VAR_KEYWORD not in kinds.values():
        allowed = [key for key in named if key not in offered]
        for option in options:
            require_known(f"model {name!r}: option", option, allowed)
    keywords = {key: value for key, value in offered.items() if key in named} | dict(options)
    try:
        signature.bind(**keywords)
    except TypeError as error:
        raise ValueError(f"model {name!r} cannot be built from the options {dict(options)!r}: {error}") from error
    return keywords
