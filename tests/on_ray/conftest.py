"""A small cluster on this machine, and rounds whose clients train on it."""

import logging
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from torch import nn

from fedwcm.core.method import Method
from fedwcm.engine.backends.plan import ExecutionPlan
from fedwcm.engine.network import Network
from fedwcm.engine.options import Aggregation
from fedwcm.engine.rounds import Rounds

from ..factories import Clusters, clusters, make_rounds, make_trainer, mlp


@pytest.fixture(scope="package")
def cluster() -> Iterator[Any]:
    """A cluster of one node, to which tests add more; this process is connected to it.

    Not for the whole session: gRPC does not survive the forks of other tests, and disconnecting would hang.
    """
    ray = pytest.importorskip("ray", reason="needs fedwcm[ray]")
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    node = {"num_cpus": 2, "object_store_memory": 100 * 2**20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=node)
    ray.init(made.address, log_to_driver=False, logging_level=logging.ERROR)
    yield made
    ray.shutdown()
    made.shutdown()


def ray_rounds(
    method: Method,
    workers: int = 2,
    *,
    module: Callable[[], nn.Module] = mlp,
    data: Clusters | None = None,
    stacked: bool = False,
    gpus: float = 0.0,
    aggregation: Aggregation | None = None,
    reject_nonfinite: bool = True,
) -> Rounds:
    """Rounds in which everybody takes part, on so many workers of the cluster."""
    from fedwcm.engine.backends.in_process import InProcess
    from fedwcm.engine.backends.on_ray.backend import RayBackend
    from fedwcm.engine.backends.on_ray.cluster import Cluster
    from fedwcm.engine.backends.on_ray.worker import WorkerSetup

    data = data or clusters()
    training = make_trainer(method, data.federation, module(), stacked=stacked)
    rounds = make_rounds(training, data.federation, aggregation=aggregation)
    setup = WorkerSetup.of(
        training,
        make_network=lambda: Network(module()),
        plan=ExecutionPlan("ray", 1, 1, stacked),
        device="cpu",
        reject_nonfinite=reject_nonfinite,
    )
    inner = InProcess(training, data.federation, rounds.store, 1, reject_nonfinite)
    object.__setattr__(rounds, "backend", RayBackend(inner, setup, partial(Cluster, None), workers, gpus))
    return rounds


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
