"""Whether this machine computes correctly: small runs on every backend and device.

Each run is made in a process of its own, where it may crash or hang, and compared with one on the CPU, client
after client, on one thread and without oneDNN.
"""

import logging
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch

from fedwcm import run
from fedwcm.core.types import Floats
from fedwcm.data import load_dataset
from fedwcm.diagnosis.facts import DEVICES, PATIENCE, Check, available
from fedwcm.engine.backends.plan import can_fork
from fedwcm.engine.options import LOCAL
from fedwcm.engine.precision import Precision, PrecisionName, precision_problem
from fedwcm.utils.child_process import ChildDiedError, call_in_child

BACKENDS = ("sequential", "vectorized", "parallel", "ray")
PRECISIONS: tuple[PrecisionName, ...] = ("bf16", "fp16")
TOLERANCE = 1e-4
"""Largest difference of a parameter after two rounds: rounding causes 1e-6, a wrong gradient over 1e-2."""

HALF_TOLERANCE = 1e-2
"""The same with 16 bits, where rounding alone causes about 2e-3."""

Model = dict[str, Floats]


@dataclass(frozen=True)
class Trial:
    """A small run to try. The reference uses one thread and no oneDNN."""

    backend: str
    device: str
    precision: PrecisionName = "fp32"
    is_reference: bool = False


def backend_checks() -> Iterator[Check]:
    """Play two rounds on every backend and device, in every precision, each compared with the reference."""
    load_dataset("digits")  # imported here, so that forked processes need not import it
    reference = _run_in_child(Trial("sequential", "cpu", is_reference=True))
    if isinstance(reference, str):
        yield Check("reference", "FAIL", reference)
        return
    for device in DEVICES:
        for backend in BACKENDS:
            yield _try_run(f"{backend} on {device}", Trial(backend, device), reference)
        for precision in PRECISIONS:
            yield _try_run(f"{precision} on {device}", Trial("sequential", device, precision), reference)


def _missing(trial: Trial) -> str:
    """Return why this cannot be tried here; empty if it can."""
    if not available(trial.device):
        return "no such device here"
    if trial.backend == "parallel" and (trial.device != "cpu" or not can_fork()):
        return "processes need fork and a CPU"
    if trial.backend == "ray" and find_spec("ray") is None:
        return "Ray is not installed: pip install 'fedwcm[ray]'"
    if trial.backend == "ray" and trial.device == "mps":
        return "workers of a cluster have cores or shares of CUDA devices"
    return precision_problem(Precision(trial.precision), torch.device(trial.device))


def _try_run(name: str, trial: Trial, reference: Model) -> Check:
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
    """Return the model after two rounds in a process of its own, or what went wrong there."""
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
        "run.workers": 2 if trial.backend in ("parallel", "ray") else 0,
        "run.worker_gpus": 0.5 if trial.device == "cuda" else 0.0,
        "run.ray_address": LOCAL,
        "participation.fraction": 1.0,
        "local.batch_size": 20,
    }
    logging.disable(logging.INFO)  # what a run tells of its data says nothing of the machine
    torch.backends.mkldnn.set_flags(not trial.is_reference)
    if trial.is_reference:
        torch.set_num_threads(1)
    try:
        result = run("scaffold", dataset="digits", clients=4, rounds=2, epochs=1, model="cnn", settings=settings)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    # As arrays: handles of shared tensors would be gone with this process.
    return {key: value.cpu().numpy() for key, value in result.model.state_dict().items()}
