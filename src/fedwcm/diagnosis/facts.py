"""Facts about this machine: versions, instruction set, devices, cores and room for files."""

import platform
import shutil
import tempfile
from pathlib import Path

import torch

from fedwcm import __version__
from fedwcm.engine.backends.plan import can_fork, usable_cores
from fedwcm.experiment.environment import PACKAGES, installed_versions, instruction_set

DEVICES = ("cpu", "cuda", "mps")


def facts() -> dict[str, str]:
    """Versions, instruction set, devices, cores and room for shared and temporary files."""
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
