"""Libraries that not every user needs, imported where they are."""

from importlib import import_module
from typing import Any


def optional_module(module: str, extra: str, what: str) -> Any:
    """Import a module of an optional dependency.

    Args:
        module: its name, such as `matplotlib.pyplot`.
        extra: the extra of this package that installs it.
        what: what needs it, for the error.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"{what} needs {package}: pip install 'fedwcm[{extra}]'") from error
