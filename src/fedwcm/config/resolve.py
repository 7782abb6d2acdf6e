"""Import of `package.module:Name`: the only place where a name in a configuration becomes code that runs.

A name that the user typed is trusted. A name that comes only from a run's folder is not, because the folder may
come from someone else.
"""

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TypeVar

from fedwcm.config.schema import Component
from fedwcm.config.settings import OBJECT

T = TypeVar("T")


class ObjectNeededError(ValueError):
    """The configuration refers to an object, which must be passed again."""


def resolve(kind: str, chosen: Component) -> Callable[..., Any]:
    """Import what `package.module:Name` names, from the current directory or an installed package.

    Args:
        kind: `method`, `loss`, `sampler`, `model` or `partition`, for error messages.
        chosen: the component that has this name.

    Raises:
        ObjectNeededError: for the name of an object that text cannot rebuild.
        ValueError: if the name is not trusted, or cannot be imported.
    """
    name = chosen.name
    if name.startswith(OBJECT):
        raise object_needed(kind, name)
    if not chosen.trusted:
        raise ValueError(
            f"{kind}.name = {name!r} is code that only the run's folder names: name it yourself "
            f"({kind}={name!r}, --{kind} {name}), or trust the folder (trust=True, --trust) if you know where it "
            "comes from"
        )
    try:
        with importable_current_directory():
            code: object = resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{kind} {name!r} cannot be loaded: {error}; allowed is package.module:Name, "
            "from the current directory or an installed package"
        ) from error
    except Exception as error:  # whatever the user's module does when it is imported
        raise ValueError(f"{kind} {name!r} cannot be loaded: {describe_error(error)}") from error
    if not callable(code):
        raise ValueError(f"{kind} {name!r} is of type {type(code).__name__}: allowed are functions and classes")
    return code


def describe_error(error: Exception) -> str:
    """Return the error with the line of the user's file that it comes from."""
    libraries = ("<", sys.prefix, sys.base_prefix)
    frames = [
        each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(libraries)
    ]
    where = f"{frames[-1].filename}, line {frames[-1].lineno}: " if frames else ""
    advice = "; write @dataclass(frozen=True, kw_only=True)" if "non-frozen dataclass" in str(error) else ""
    return f"{where}{type(error).__name__}: {error}{advice}"


def resolve_class(kind: str, chosen: Component, known: Mapping[str, type[T]], base: type[T]) -> type[T]:
    """Return the class of a registered name, or of `package.module:Name`, which must be a subclass of `base`."""
    if ":" not in chosen.name:
        return known[chosen.name]
    cls = resolve(kind, chosen)
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise ValueError(f"{kind} {chosen.name!r} is not a subclass of fedwcm.{base.__name__}")
    return cls


def object_needed(kind: str, name: str) -> ObjectNeededError:
    """Return the error for a missing object."""
    keyword = {"data": "dataset", "partition": "clients" if "client_ids" in name else "partition"}.get(kind, kind)
    what = name.removeprefix(OBJECT).partition("#")[0]
    return ObjectNeededError(
        f"the {kind} was given as an object ({what}), which text cannot rebuild: "
        f"pass it again from Python, as {keyword}=…"
    )


def import_path(value: object) -> str:
    """Return the name of a class or function: `package.module:Name` if it can be imported, else `object:…`."""
    module, name = getattr(value, "__module__", "?"), getattr(value, "__qualname__", type(value).__name__)
    with suppress(AttributeError, ImportError, ValueError):
        if module != "__main__" and module in sys.modules and resolve_name(f"{module}:{name}") is value:
            return f"{module}:{name}"
    return object_name(value)


def object_name(value: object) -> str:
    """Return the name of a class or function that text cannot rebuild."""
    return f"{OBJECT}{getattr(value, '__module__', '?')}.{getattr(value, '__qualname__', type(value).__name__)}"


@contextmanager
def importable_current_directory() -> Iterator[None]:
    """Add, within the block, the current directory to the import path.

    A console script, unlike `python -m`, does not search the current directory by itself.
    """
    directory = str(Path.cwd())
    if directory in sys.path or "" in sys.path:
        yield
        return
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        with suppress(ValueError):  # the imported module may have removed the entry itself
            sys.path.remove(directory)
