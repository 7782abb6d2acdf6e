"""A digest of the code that a run takes from outside the package: an edited method is another method."""

import hashlib
import inspect
import sys
from collections.abc import Iterable
from contextlib import suppress
from types import FunctionType

LIBRARIES = {"fedwcm", "torch", "numpy", *sys.stdlib_module_names}
"""Packages whose code a run's versions name."""


def digest_sources(parts: Iterable[object]) -> dict[str, str]:
    """Return a digest of the source of each class and function that is not a library's, and of its bases.

    An importable module counts as a whole: what a class does may depend on a function beside it. Of a script or a
    notebook only the class itself counts, as the rest of it may be the call that is repeated.
    """
    digests = {}
    for part in parts:
        kind = part if isinstance(part, type | FunctionType) else type(part)
        for each in inspect.getmro(kind) if isinstance(kind, type) else (kind,):
            module = each.__module__ or ""  # none of what `exec` defines
            if module.partition(".")[0] in LIBRARIES:
                continue
            of_script = module == "__main__"
            with suppress(OSError, TypeError):  # code that was typed has no file
                text = inspect.getsource(each if of_script else sys.modules.get(module, each))
                name = f"{module}.{each.__qualname__}" if of_script else module
                digests[name] = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return digests
