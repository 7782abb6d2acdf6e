"""Facts about this machine (versions, devices, cores, room for files), and the checks of its convolutions."""

import platform
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from fedwcm import __version__
from fedwcm.diagnosis import convolutions
from fedwcm.diagnosis.convolutions import EXAMPLES, PLAIN_POINTWISE
from fedwcm.engine.backends.plan import can_fork, usable_cores
from fedwcm.experiment.environment import PACKAGES, installed_versions, instruction_set

DEVICES = ("cpu", "cuda", "mps")


def facts() -> dict[str, str]:
    """Return versions, instruction set, devices, cores and room for shared and temporary files."""
    shared, versions = Path("/dev/shm"), installed_versions()
    return {
        "fedwcm": __version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        **{name: versions.get(name, "not installed") for name in PACKAGES},
        "instruction set": instruction_set(),
        "oneDNN": "in use" if torch._C._has_mkldnn else "not in this build of torch",
        "devices": ", ".join(device for device in DEVICES if available(device)),
        "cores": str(usable_cores()),
        "/dev/shm": _room(shared) if shared.exists() else "none, and not needed",
        "temporary files": f"{_room(Path(tempfile.gettempdir()))} in {tempfile.gettempdir()}",
        "fork": "yes" if can_fork() else "no: the backend parallel cannot be used",
    }


def available(device: str) -> bool:
    """Return whether torch can compute on this device here."""
    backend = {"cuda": torch.cuda, "mps": torch.backends.mps}.get(device)
    return backend is None or bool(backend.is_available())


def _room(folder: Path) -> str:
    usage = shutil.disk_usage(folder)
    return f"{usage.free / 2**20:,.0f} of {usage.total / 2**20:,.0f} MB free"


PATIENCE = 120.0
"""Seconds after which a check counts as hanging."""

Status = Literal["PASS", "FAIL", "avoided", "skipped"]
"""`avoided` is a fault of this machine that the package's models work around."""


@dataclass(frozen=True)
class Check:
    """A check and its result."""

    name: str
    status: Status
    detail: str


def convolution_checks() -> Iterator[Check]:
    """Check convolutions as models have them, on one thread and on two; and the one that oneDNN may get wrong."""
    tried = convolutions.check_convolutions(EXAMPLES, threads=(1, 2), timeout=PATIENCE)
    known = convolutions.check_convolutions([PLAIN_POINTWISE], threads=(1,), timeout=PATIENCE)  # two may hang
    for result in (*tried, *known):
        c, detail = result.convolution, result.problem or "its gradients are right"
        status: Status = "FAIL" if result.problem else "PASS"
        if result.problem and c == PLAIN_POINTWISE:
            status, detail = "avoided", f"{detail}; layers of a model compute it in another way (docs/models.md)"
        shape = f"{c.kernel}×{c.kernel}, stride {c.stride}, {c.channels} to {c.filters} channels"
        threads = "1 thread" if result.threads == 1 else f"{result.threads} threads"
        yield Check(f"{c.layer.rpartition(':')[2]} {shape}, {threads}", status, detail)
