"""Facts about this machine: versions, instruction set, devices, cores and room for files."""

import importlib.metadata
import os
import platform
import shutil
import tempfile
from pathlib import Path

import torch

from fedwcm import __version__
from fedwcm.engine.backends.plan import can_fork, usable_cores

PACKAGES = ("torch", "numpy", "safetensors", "scikit-learn", "flwr", "ray", "tenseal")


DEVICES = ("cpu", "cuda", "mps")


def facts() -> dict[str, str]:
    """Versions, instruction set, devices, cores and room for shared and temporary files."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA")
    shared = Path("/dev/shm")
    return {
        "fedwcm": __version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        **{name: _version(name) for name in PACKAGES},
        "instruction set": torch.backends.cpu.get_cpu_capability() + (f", oneDNN up to {limit}" if limit else ""),
        "oneDNN": "in use" if torch._C._has_mkldnn else "not in this build of torch",
        "devices": ", ".join(device for device in DEVICES if available(device)),
        "cores": str(usable_cores()),
        "/dev/shm": _room(shared) if shared.exists() else "none, and not needed",
        "temporary files": f"{_room(Path(tempfile.gettempdir()))} in {tempfile.gettempdir()}",
        "fork": "yes" if can_fork() else "no: the backend parallel cannot be used",
    }


def available(device: str) -> bool:
    """Whether torch can compute on this device here."""
    backend = {"cuda": torch.cuda, "mps": torch.backends.mps}.get(device)
    return backend is None or bool(backend.is_available())


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _room(folder: Path) -> str:
    usage = shutil.disk_usage(folder)
    return f"{usage.free / 2**20:,.0f} of {usage.total / 2**20:,.0f} MB free"
