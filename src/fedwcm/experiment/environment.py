"""What made a run: versions, machine, command and dates, and the source of code that is not the package's."""

import hashlib
import importlib.metadata
import inspect
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import CodeType, FunctionType

import torch

from fedwcm import __version__
from fedwcm.engine.backends.plan import usable_cores
from fedwcm.experiment.records import EnvironmentRecord

LIBRARIES = {"fedwcm", "torch", "numpy", *sys.stdlib_module_names}
"""Packages whose code a run's versions name."""


def _program() -> str:
    """Return the name of the command or script; a package that runs as a module is called __main__.py."""
    path = Path(sys.argv[0])
    return path.parent.name if path.name == "__main__.py" else path.name


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
            counts_alone = module == "__main__" or module not in sys.modules
            if counts_alone and each.__name__ == "<lambda>":
                continue  # its source is the whole line of a call; the model that it makes is compared
            name = f"{module}.{each.__qualname__}".lstrip(".") if counts_alone else module
            text = _read_source(each if counts_alone else sys.modules[module])
            digests[name] = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return digests


def _read_source(part: object) -> str:
    """Return the source of a module, class or function; where none is kept, what it was compiled to.

    A notebook keeps the source of functions, but not of classes.
    """
    with suppress(OSError, TypeError):
        return inspect.getsource(part)  # type: ignore[arg-type]
    if isinstance(part, FunctionType):
        return _describe_code(part.__code__)
    functions = (getattr(each, "fget", None) or getattr(each, "__func__", each) for each in vars(part).values())
    return "\n".join(_read_source(each) for each in functions if isinstance(each, FunctionType))


def _describe_code(code: CodeType) -> str:
    constants = [
        _describe_code(each) if isinstance(each, CodeType) else repr(each)
        for part in code.co_consts
        for each in (sorted(part, key=repr) if isinstance(part, frozenset) else [part])
    ]
    return repr((code.co_name, code.co_code, code.co_names, constants))


PACKAGES = ("torch", "numpy", "safetensors", "flwr", "ray", "tenseal")


def describe_environment(data: str | None, sources: Mapping[str, str], jobs: int) -> EnvironmentRecord:
    """Return what this process is, for one of so many runs at a time on this data with this code."""
    return EnvironmentRecord(
        versions={"fedwcm": __version__, "python": platform.python_version(), **installed_versions()},
        commit=_commit(),
        system=f"{platform.system()} {platform.machine()}",
        cpu=_cpu(),
        instruction_set=instruction_set(),
        cores=usable_cores(),
        threads=torch.get_num_threads(),
        jobs=jobs,
        command=" ".join([_program(), *sys.argv[1:]]),
        started=now(),
        data=data,
        sources=sources,
    )


def now() -> str:
    """Return the date and time in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def installed_versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    versions = {}
    for name in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def instruction_set() -> str:
    """Return the instruction set that torch computes with, and the limit that oneDNN was given, if any."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA")
    return str(torch.backends.cpu.get_cpu_capability()) + (f", oneDNN up to {limit}" if limit else "")


def _commit() -> str | None:
    """Return the commit of the checkout that this package is in, if it is in one."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude", "*"]
    with suppress(OSError, subprocess.SubprocessError):
        text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=5).stdout
        return text.strip()
    return None


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
