"""Facts about this machine, and whether it computes correctly: small runs on every backend and device.

Each run is made in a process of its own, where it may crash or hang, and compared with one on the CPU, client
after client, on one thread and without oneDNN.
"""

import importlib.metadata
import multiprocessing
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fedwcm import __version__
from fedwcm.api import run
from fedwcm.core.child_process import ChildDiedError, call_in_child
from fedwcm.core.types import Floats
from fedwcm.data import load_dataset
from fedwcm.engine.backends.plan import can_fork, usable_cores
from fedwcm.engine.cluster_options import LOCAL
from fedwcm.engine.precision import Precision, PrecisionName, precision_problem
from fedwcm.models import convolution_check
from fedwcm.models.convolution_check import EXAMPLES, PLAIN_POINTWISE

PACKAGES = ("torch", "numpy", "safetensors", "scikit-learn", "flwr", "ray", "tenseal")
BACKENDS = ("sequential", "vectorized", "parallel", "ray")
DEVICES = ("cpu", "cuda", "mps")
PRECISIONS: tuple[PrecisionName, ...] = ("bf16", "fp16")
PATIENCE = 120.0
"""Seconds after which a run counts as hanging."""

TOLERANCE = 1e-4
"""Largest difference of a parameter after two rounds: rounding causes 1e-6, a wrong gradient over 1e-2."""

HALF_TOLERANCE = 1e-2
"""The same with 16 bits, where rounding alone causes about 2e-3."""

Model = dict[str, Floats]
Status = Literal["PASS", "FAIL", "avoided", "skipped"]
"""`avoided` is a fault of this machine that the package's models work around."""


@dataclass(frozen=True)
class Trial:
    """A small run to try. The reference uses one thread and no oneDNN."""

    backend: str
    device: str
    precision: PrecisionName = "fp32"
    is_reference: bool = False


@dataclass(frozen=True)
class Check:
    """A check and its result."""

    name: str
    status: Status
    detail: str


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


def check_backends() -> Iterator[Check]:
    """Two rounds on every backend and device and in every precision, each compared with the reference, in turn."""
    load_dataset("digits")  # imported here, so that forked processes need not import it
    reference = _run_in_child(Trial("sequential", "cpu", is_reference=True))
    if isinstance(reference, str):
        yield Check("reference", "FAIL", reference)
        return
    for device in DEVICES:
        for backend in BACKENDS:
            yield _tried(f"{backend} on {device}", Trial(backend, device), reference)
        for precision in PRECISIONS:
            yield _tried(f"{precision} on {device}", Trial("sequential", device, precision), reference)


def check_convolutions() -> Iterator[Check]:
    """Convolutions as models have them, on one thread and on two; and the one that oneDNN may get wrong."""
    tried = convolution_check.check_convolutions(EXAMPLES, threads=(1, 2), timeout=PATIENCE)
    known = convolution_check.check_convolutions([PLAIN_POINTWISE], threads=(1,), timeout=PATIENCE)  # two may hang
    for result in (*tried, *known):
        c, detail = result.convolution, result.problem or "its gradients are right"
        status: Status = "FAIL" if result.problem else "PASS"
        if result.problem and c == PLAIN_POINTWISE:
            status, detail = "avoided", f"{detail}; layers of a model compute it in another way (docs/models.md)"
        shape = f"{c.kernel}×{c.kernel}, stride {c.stride}, {c.channels} to {c.filters} channels"
        threads = "1 thread" if result.threads == 1 else f"{result.threads} threads"
        yield Check(f"{c.layer.rpartition(':')[2]} {shape}, {threads}", status, detail)


def available(device: str) -> bool:
    """Whether torch can compute on this device here."""
    backend = {"cuda": torch.cuda, "mps": torch.backends.mps}.get(device)
    return backend is None or bool(backend.is_available())


def _missing(trial: Trial) -> str:
    """Why this cannot be tried here; empty if it can."""
    if not available(trial.device):
        return "no such device here"
    if trial.backend == "parallel" and (trial.device != "cpu" or not can_fork()):
        return "processes need fork and a CPU"
    if trial.backend == "ray" and find_spec("ray") is None:
        return "Ray is not installed: pip install 'fedwcm[ray]'"
    if trial.backend == "ray" and trial.device == "mps":
        return "workers of a cluster have cores or shares of CUDA devices"
    return precision_problem(Precision(trial.precision), torch.device(trial.device))


def _tried(name: str, trial: Trial, reference: Model) -> Check:
    reason = _missing(trial)
    if reason:
        return Check(name, "skipped", reason)
    model = _run_in_child(trial)
    if isinstance(model, str):
        return Check(name, "FAIL", model)
    difference = float(np.max([np.abs(model[key] - reference[key]).max() for key in reference]))  # keeps a NaN
    agrees = difference <= (TOLERANCE if trial.precision == "fp32" else HALF_TOLERANCE)  # not so for NaN
    return Check(name, "PASS" if agrees else "FAIL", f"differs from the reference by {difference:.1e}")


def _run_in_child(trial: Trial) -> Model | str:
    """The model after two rounds in a process of its own, or what went wrong there."""
    forked = trial.device == "cpu" and can_fork() and trial.backend != "ray"  # Ray's threads do not survive it
    context = multiprocessing.get_context("fork") if forked else multiprocessing.get_context("spawn")
    try:
        return call_in_child(context, _run, trial, timeout=PATIENCE)
    except TimeoutError as error:
        return str(error)
    except ChildDiedError as error:
        return f"the process {error}"


def _run(trial: Trial) -> Model | str:
    settings = {
        "run.backend": trial.backend,
        "run.device": trial.device,
        "run.precision": trial.precision,
        "run.workers": 2,
        "run.worker_gpus": 0.5 if trial.device == "cuda" else 0.0,
        "run.ray_address": LOCAL,
        "participation.fraction": 1.0,
        "local.batch_size": 20,
    }
    torch.backends.mkldnn.set_flags(not trial.is_reference)
    if trial.is_reference:
        torch.set_num_threads(1)
    try:
        result = run("scaffold", dataset="digits", clients=4, rounds=2, epochs=1, model="cnn", settings=settings)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    # As arrays: handles of shared tensors would be gone with this process.
    return {key: value.cpu().numpy() for key, value in result.model.state_dict().items()}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _room(folder: Path) -> str:
    usage = shutil.disk_usage(folder)
    return f"{usage.free / 2**20:,.0f} of {usage.total / 2**20:,.0f} MB free"
