"""The rounds of a run, and who trains its clients: this process, forked workers, or the workers of a cluster."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from fedwcm.config.schema import Config, RunOptions
from fedwcm.data import synthetic
from fedwcm.engine.backends.in_process import Backend, InProcess
from fedwcm.engine.backends.plan import ExecutionPlan
from fedwcm.engine.backends.processes import Processes
from fedwcm.engine.client import ClientTrainer
from fedwcm.engine.federation import Federation
from fedwcm.engine.network import Network
from fedwcm.engine.rounds import Rounds
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
) -> Rounds:
    """Return the rounds of a run whose clients are trained as planned."""
    first = trainer.clients(np.array([0]), [federation.shard(0)])
    x = trainer.forward.network.initial()[0]
    require_possible(config.aggregation, trainer.method, x)
    store = ClientStore(trainer.population.clients, trainer.initial_state(first, x))
    inner = InProcess(trainer, federation, store, execution.block, config.run.reject_nonfinite)
    return Rounds(
        trainer=trainer,
        federation=federation,
        participation=config.participation,
        backend=_backend(config, execution, inner, sources),
        store=store,
        learning_rate=config.local,
        aggregation=config.aggregation,
        server=config.server,
    )


def _backend(config: Config, execution: ExecutionPlan, inner: InProcess, sources: WorkerSources) -> Backend:
    if execution.name != "ray":
        return Processes(inner, execution.workers) if execution.workers > 1 else inner
    from fedwcm.engine.backends.on_ray.backend import RayBackend
    from fedwcm.engine.backends.on_ray.cluster import Cluster
    from fedwcm.engine.backends.on_ray.worker import WorkerSetup

    run, device = config.run, worker_device(config.run, sources.device)
    setup = WorkerSetup.of(
        inner.trainer,
        make_network=partial(sources.make_network, device),
        plan=execution,
        device=device,
        reject_nonfinite=run.reject_nonfinite,
        read=partial(sources.read, device) if _is_there_already(config) else None,
    )
    return RayBackend(inner, setup, lambda: Cluster(run.ray_address, run.workers), run.workers, run.worker_gpus)


def _is_there_already(config: Config) -> bool:
    """Whether workers need not be sent the data: they read, or draw, them themselves."""
    return config.data.shared or config.data.dataset == synthetic.NAME


def worker_device(run: RunOptions, asked: str) -> str:
    """Workers that have a share of a GPU use it, whether or not this machine has one."""
    return "cuda" if run.worker_gpus and asked != "cpu" else "cpu"
