"""What a Ray cluster costs: bytes that a round moves, memory of the server, and the constants of the cost model.

    python -m benchmarks.run --groups cluster

Traffic is measured between three nodes of one machine, a server and two workers, in a network of their own whose
loopback device carries nothing else (`unshare`, Linux). Workers that sleep in place of training stand for a
cluster that is larger than the machine: what they show is how rounds, messages and sums add up.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cost_model import Load, round_cost
from benchmarks.environments import ROOT
from benchmarks.marks import Marks
from benchmarks.process_tree import largest_ever

WORKERS = 2
ROUNDS = 8
WARMUP = 2
COHORTS = (10, 1000)
DELAY = 1.0
"""Seconds that a client sleeps in place of training."""
DELAYED_CLIENTS, DELAYED_WORKERS = 48, (2, 4, 8, 16)
LIVES = ("unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
"""Starts a command in a network of its own."""


def measure() -> dict[str, Any]:
    """Everything, each part in a process of its own."""
    costs = _child("constants")
    return {
        "traffic": _child("traffic", LIVES),
        "memory": {backend: _memory(backend) for backend in ("ray", "parallel")},
        "constants": costs,
        "delayed": [
            {"workers": workers, "predicted": predicted(workers, costs), **_child("delayed", (), str(workers))}
            for workers in DELAYED_WORKERS
        ],
    }


def predicted(workers: int, costs: dict[str, float]) -> float:
    """Seconds of a round of the delayed clients."""
    load = Load("delayed", DELAYED_CLIENTS, DELAY + costs["client_seconds"], int(costs["client_parameters"]))
    return round(round_cost(load, workers, costs).seconds, 4)


def _child(part: str, lives: tuple[str, ...] = (), *arguments: str) -> dict[str, Any]:
    command = [*lives, sys.executable, "-m", "benchmarks.cluster", part, *arguments]
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return answer


def _memory(backend: str) -> dict[str, float]:
    """Peak memory of the process that drives the rounds."""
    few, many = (_child("memory", (), backend, str(cohort)) for cohort in COHORTS)
    peaks = {str(COHORTS[0]): few["bytes"], str(COHORTS[1]): many["bytes"]}
    return {**peaks, "growth": round(many["bytes"] / few["bytes"], 4), "parameters": few["parameters"]}


def traffic() -> dict[str, float]:
    """Bytes of a FedAvg round on two nodes, beyond what an idle cluster exchanges in the same time."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(WORKERS):
        cluster.add_node(num_cpus=1)
    ray.init(cluster.address, log_to_driver=False)
    began, before = time.monotonic(), _loopback()
    time.sleep(5.0)
    idle = (_loopback() - before) / (time.monotonic() - began)
    marks = Marks(_loopback, time.monotonic)
    parameters = _synthetic("fedavg", "ray", 20, marks, [1024, 1024])
    moved = median(b - idle * s for b, s in zip(*marks.steps(WARMUP), strict=True))
    sums, down = 4 * WORKERS * parameters, 4 * WORKERS * parameters
    ray.shutdown()
    cluster.shutdown()
    return {
        "parameters": parameters,
        "workers": WORKERS,
        "idle_bytes_per_second": round(idle),
        "bytes": round(moved),
        "over_sums": round((moved - down) / sums, 4),
        "over_model": round(moved / (down + 2 * sums), 4),
    }


def memory(backend: str, cohort: str) -> dict[str, int]:
    """Peak memory of this process, which drives rounds of so many clients."""
    parameters = _synthetic("fedavg", backend, int(cohort), Marks(), [512, 256])
    return {"bytes": largest_ever("self"), "parameters": parameters}


def _synthetic(method: str, backend: str, cohort: int, progress: Any, hidden: list[int]) -> int:
    """Play rounds of synthetic clients; returns the size of the model."""
    import fedwcm

    settings = {"run.workers": WORKERS, "model.hidden": hidden, "run.eval_every": ROUNDS}
    settings |= {"participation.fraction": cohort / COHORTS[-1]}
    result = fedwcm.run(
        method,
        dataset="synthetic",
        clients=COHORTS[-1],
        rounds=ROUNDS,
        epochs=1,
        model="mlp",
        backend=backend,  # type: ignore[arg-type]
        settings=settings,
        progress=progress,
    )
    return result.summary.parameters


def constants() -> dict[str, Any]:
    """What the cost model rests on. Processor time where that is what counts: other programs do not change it."""
    few, many = _driver_seconds(10), _driver_seconds(100)
    return {
        "driver_seconds_per_block": round((many[0] - few[0]) / 90, 6),
        "client_seconds": round(few[1], 6),
        "client_parameters": few[2],
        "sum_seconds_per_number": _sum_seconds(),
        "call_seconds": round(_call_seconds(), 6),
    }


def _driver_seconds(clients: int) -> tuple[float, float, int]:
    """Processor time of this process for a round of clients that train one by one; a client's seconds and size."""
    marks = Marks(time.process_time, time.monotonic)
    parameters = _digits("fedavg", clients, WORKERS, marks)
    used, passed = map(median, marks.steps(WARMUP))
    return used, passed * WORKERS / clients, parameters


def _digits(method: Any, clients: int, workers: int, progress: Any) -> int:
    """Play rounds of small clients that train one by one, not stacked; returns the size of the model."""
    import fedwcm

    settings = {"run.workers": workers, "run.eval_every": ROUNDS, "participation.fraction": 1.0}
    result = fedwcm.run(
        method,
        dataset="digits",
        imbalance="none",
        partition="iid",
        clients=clients,
        steps=1,
        rounds=ROUNDS,
        model="cnn",
        backend="ray",
        settings=settings,
        progress=progress,
    )
    return result.summary.parameters


def _sum_seconds(clients: int = 10, numbers: int = 1_000_000) -> float:
    """Processor time of a worker to add a number of a client's upload to one sum."""
    import numpy as np
    import torch

    from fedwcm.engine.backends.on_ray.fixed_point import add_weighted

    torch.set_num_threads(1)
    rows, weights, total = torch.randn(clients, numbers), np.full((1, clients), 0.1), np.zeros((1, numbers))
    began = time.process_time()
    for _ in range(ROUNDS):
        add_weighted(total, rows, weights, 2.0**-50)
    return float(f"{(time.process_time() - began) / (ROUNDS * clients * numbers):.4g}")


def _call_seconds() -> float:
    """A call of a worker and its answer."""
    import ray

    from fedwcm.engine.backends.on_ray.cluster import Cluster

    class Echo:
        def say(self) -> int:
            return 0

    with Cluster(None, WORKERS):
        actor: Any = ray.remote(Echo).remote()
        ray.get(actor.say.remote())
        seconds = []
        for _ in range(200):
            began = time.perf_counter()
            ray.get(actor.say.remote())
            seconds.append(time.perf_counter() - began)
        return median(seconds)


def delayed(workers: str) -> dict[str, float]:
    """Seconds of a round whose clients sleep, on more workers than this machine has cores."""
    from fedwcm.methods import METHODS

    base: Any = METHODS["fedavg"]

    class Delayed(base):  # type: ignore[misc]
        def finish(self, *given: Any) -> Any:
            time.sleep(DELAY)
            return super().finish(*given)

    marks = Marks(time.monotonic)
    _digits(Delayed, DELAYED_CLIENTS, int(workers), marks)
    return {"seconds": round(median(marks.steps(WARMUP)[0]), 4)}


def _loopback() -> float:
    lines = Path("/proc/net/dev").read_text(encoding="utf-8").splitlines()
    return float(next(line.partition(":")[2].split()[0] for line in lines if line.strip().startswith("lo:")))


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "traffic": traffic,
    "memory": memory,
    "constants": constants,
    "delayed": delayed,
}

if __name__ == "__main__":
    outcome = PARTS[sys.argv[1]](*sys.argv[2:])
    print(json.dumps(outcome), flush=True)
