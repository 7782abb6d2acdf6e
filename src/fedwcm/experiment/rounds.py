"""The rounds of a run, and who trains its clients on what: this process, forked workers, or those of a cluster."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from fedwcm.config.options import NamedObject, make
from fedwcm.config.resolve import resolve
from fedwcm.config.schema import Component, Config, RunOptions
from fedwcm.config.settings import named_options
from fedwcm.core.batch import Federation
from fedwcm.core.checks import require, unknown
from fedwcm.core.method import TwoPhase
from fedwcm.core.types import Ints
from fedwcm.data import synthetic
from fedwcm.engine.backends.in_process import Backend, InProcess
from fedwcm.engine.backends.plan import ExecutionPlan
from fedwcm.engine.backends.processes import Processes
from fedwcm.engine.client import ClientTrainer
from fedwcm.engine.evaluate import LabelledTensors
from fedwcm.engine.network import Network
from fedwcm.engine.options import DRAWS
from fedwcm.engine.participation import PARTICIPATIONS, Participation, Turns
from fedwcm.engine.precision import Precision, PrecisionName, precision_problem
from fedwcm.engine.rounds import Rounds
from fedwcm.engine.server_data import ServerSamples
from fedwcm.engine.store import ClientStore
from fedwcm.engine.uploads import require_possible


@dataclass(frozen=True, eq=False)
class WorkerSources:
    """How a worker of a cluster, on another machine, makes the model and reads the data, both onto its device."""

    make_network: Callable[[str], Network]
    read: Callable[[str], Federation]
    device: str
    """Of the workers, as it was asked for."""


def make_rounds(
    config: Config,
    trainer: ClientTrainer,
    federation: Federation,
    execution: ExecutionPlan,
    sources: WorkerSources,
    own_data: LabelledTensors | None = None,
) -> Rounds:
    """Return the rounds of a run whose clients are trained as planned; `own_data` are the server's samples."""
    first = trainer.clients(np.array([0]), [federation.shard(0)])
    x, buffers = trainer.forward.network.initial()
    require_possible(config.aggregation, trainer.method, x)
    store = ClientStore(trainer.population.clients, trainer.initial_state(first, x, buffers))
    inner = InProcess(trainer, federation, store, execution.block, config.run.reject_nonfinite)
    network = trainer.forward.network
    own_samples = None if own_data is None else ServerSamples(network, own_data.inputs, own_data.labels)
    rounds = Rounds(
        trainer=trainer,
        federation=federation,
        participation=config.participation,
        backend=_backend(config, execution, inner, sources),
        store=store,
        learning_rate=config.local,
        aggregation=config.aggregation,
        server=config.server,
        own_data=own_samples,
    )
    return replace(rounds, turns=_turns(config, rounds))


def find_participation(sampling: str) -> Participation | None:
    """Return the choice of clients of this name or object; None for one that only draws."""
    if sampling in DRAWS:
        return None
    if isinstance(sampling, NamedObject):
        chosen: Participation = sampling.value
        return chosen
    name, options = named_options(sampling)
    known = {**dict.fromkeys(DRAWS), **PARTICIPATIONS}
    if ":" not in name and name not in PARTICIPATIONS:
        raise unknown("value for participation.sampling:", name, known)
    cls: Any = PARTICIPATIONS.get(name) or resolve("sampling", Component(name))
    if not (isinstance(cls, type) and issubclass(cls, Participation)):
        raise ValueError(f"sampling {name!r} is not a subclass of fedwcm.Participation")
    return make(cls, options, "sampling")


def _turns(config: Config, rounds: Rounds) -> Turns | None:
    """Return what plans the rounds, where clients are chosen or have a simulated clock."""
    options, trainer = config.participation, rounds.trainer
    choice = find_participation(options.sampling)
    if choice is None and not options.has_clock:
        return None
    late = options.staleness is not None
    allowed = "sequential, vectorized or parallel with participation.staleness: uploads stay with Ray's workers"
    require(not late or config.run.backend != "ray", "run.backend", config.run.backend, allowed)
    keeps = rounds.store.keeps_anything or isinstance(trainer.method, TwoPhase)
    allowed = (
        f"none with the method {trainer.method.name}, whose clients keep state or send something before they train"
    )
    require(not late or not keeps, "participation.staleness", options.staleness, allowed)

    def counts() -> Ints:
        hidden = config.privacy.mode != "none"
        require(
            not hidden, "participation.sampling", options.sampling, "one without counts, which encryption hides"
        )
        return rounds.reported_counts()

    return Turns(options, choice, trainer.population, rounds.federation.samples, counts, trainer.seed)


def _backend(config: Config, execution: ExecutionPlan, inner: InProcess, sources: WorkerSources) -> Backend:
    if execution.name != "ray":
        return Processes(inner, execution.workers) if execution.workers > 1 else inner
    from fedwcm.engine.backends.on_ray.backend import RayBackend
    from fedwcm.engine.backends.on_ray.cluster import Cluster
    from fedwcm.engine.backends.on_ray.worker import WorkerSetup

    run, device = config.run, worker_device(config.run, sources.device)
    reads_data = config.data.shared or config.data.dataset == synthetic.NAME  # or draws it: it need not be sent
    setup = WorkerSetup.of(
        inner.trainer,
        make_network=partial(sources.make_network, device),
        plan=execution,
        device=device,
        reject_nonfinite=run.reject_nonfinite,
        read=partial(sources.read, device) if reads_data else None,
    )
    return RayBackend(inner, setup, lambda: Cluster(run.ray_address, run.workers), run.workers, run.worker_gpus)


def worker_device(run: RunOptions, device: str) -> str:
    """Return the workers' device: a GPU if they have a share of one, whether or not this machine has one."""
    return "cuda" if run.worker_gpus and device != "cpu" else "cpu"


def chosen_device(name: str) -> torch.device:
    """Return the device of this name; `auto` is a GPU if there is one."""
    if name != "auto":
        return _present_device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def choose_kernels(device: torch.device) -> None:
    """Make a GPU convolve in float32 where float32 is asked for, and in the same way every time.

    By default, cuDNN rounds the factors of float32 convolutions to 10 bits (TF32), and may choose algorithms whose
    sums depend on the order in which threads finish. Does nothing for other devices.
    """
    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False


def chosen_precision(name: PrecisionName, device: torch.device) -> Precision:
    """Return the precision of this name; an error says why the device cannot train in it."""
    precision = Precision(name)
    problem = precision_problem(precision, device)
    if problem:
        raise ValueError(
            f"run.precision = {name!r} cannot be used on {device}: {problem}. Use fp32, or another device"
        )
    return precision


def _present_device(name: str) -> torch.device:
    """Return the device of this name; an error says why it cannot be used."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"run.device = {name!r} is not allowed: it must be auto, cpu, cuda, mps, …") from None
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError) as error:  # which of them depends on the device
        reason = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        raise ValueError(
            f"run.device = {name!r} cannot be used here: {reason}. Use cpu, or auto: a GPU if there is one"
        ) from None
    return device
