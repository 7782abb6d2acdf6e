"""Which backend trains the clients: chosen by rule, never by timing, and never changing the result."""

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from fedwcm.core.checks import require
from fedwcm.engine.fast.linear_layers import linear_layers
from fedwcm.engine.fast.linear_stack import LinearStack
from fedwcm.engine.forward import Forward, SequentialForward, VmapForward
from fedwcm.engine.network import Network

BackendName = Literal["auto", "sequential", "vectorized", "parallel"]

STACK_BELOW = 2**16
"""Parameters up to which stacked clients beat one client at a time: below, calls cost more than arithmetic.

Not for stacks of linear layers, whose kernel wins at every size.
"""

BLOCK_FLOATS = 2**22
"""Parameters in one stacked block: enough to hide the overhead of the calls, few enough for the cache."""

WORTH_FORKING = 2**20
"""Parameters times clients a round from which a second process gains more than its messages cost."""


@dataclass(frozen=True)
class ExecutionPlan:
    """How clients are trained: so many in a block, one by one or stacked, by so many processes."""

    name: str
    block: int
    workers: int
    stacked: bool = False

    @property
    def threads(self) -> int | None:
        """Threads of this process while clients train: more than one would wait for each other, or for workers."""
        return 1 if self.stacked or self.workers > 1 else None

    def forward(self, network: Network) -> Forward:
        return stacked_forward(network) if self.stacked else SequentialForward(network)


def choose(name: BackendName, workers: int, network: Network, cohort: int) -> ExecutionPlan:
    """The backend of this name; `auto` stacks models where that helps, and uses every core where that helps.

    `workers` = 0 means one process a core. Processes need `fork`, a CPU and more than one client a round.
    """
    require(workers >= 0, "run.workers", workers, "0 (one a core) or more")
    cores = min(cohort, workers or _cores())
    stacked = bool(linear_layers(network)) or (_stackable(network) and network.size <= STACK_BELOW)
    if name == "auto":
        worth = cores > 1 and _forkable(network) and (not stacked or network.size * cohort >= WORTH_FORKING)
        name = "parallel" if worth else "vectorized" if stacked else "sequential"
    if name == "sequential":
        return ExecutionPlan(name, 1, 1)
    if name == "vectorized":
        return ExecutionPlan(name, _block(network, cohort), 1, stacked=True)
    require(_forkable(network), "run.backend", name, "another one here: processes need fork and a CPU")
    return ExecutionPlan(name, _block(network, -(-cohort // cores)) if stacked else 1, cores, stacked)


def stacked_forward(network: Network) -> Forward:
    """Return the best way to run many models of this network at a time."""
    return LinearStack(network) if linear_layers(network) else VmapForward(network)


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Compute with so many threads for a while; None leaves them as they are."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _block(network: Network, clients: int) -> int:
    """Clients in a block: evenly filled, none larger than the cache likes."""
    blocks = -(-clients // max(1, BLOCK_FLOATS // network.size))
    return -(-clients // blocks)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _stackable(network: Network) -> bool:
    """Stacked convolutions become grouped ones, which are slow; buffers and dropout are per client."""
    convolutions = any(isinstance(m, nn.modules.conv._ConvNd) for m in network.module.modules())
    return not (network.buffers or network.stochastic or convolutions)


def can_fork() -> bool:
    """Whether this system makes processes that have everything already."""
    return "fork" in multiprocessing.get_all_start_methods()


def _forkable(network: Network) -> bool:
    return network.device.type == "cpu" and can_fork()
