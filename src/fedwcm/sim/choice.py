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
from fedwcm.core.forward import Forward, OneByOne, Stacked
from fedwcm.core.network import Network

BackendName = Literal["auto", "sequential", "vectorized", "parallel"]

STACK_BELOW = 2**16
"""Parameters up to which stacked clients beat one client at a time: below, calls cost more than arithmetic."""

BLOCK_FLOATS = 2**22
"""Parameters in one stacked block: enough to hide the overhead of the calls, few enough for the cache."""


@dataclass(frozen=True)
class Choice:
    """How clients are trained: so many in a block, by so many processes."""

    name: str
    block: int
    workers: int

    @property
    def threads(self) -> int | None:
        """Threads of this process, where more than one would only wait for each other: small operations."""
        return 1 if self.name == "vectorized" else None

    def forward(self, network: Network) -> Forward:
        return Stacked(network) if self.name == "vectorized" else OneByOne(network)


def choose(name: BackendName, workers: int, network: Network, cohort: int) -> Choice:
    """The backend of this name; `auto` stacks small models without convolutions, else uses every core.

    `workers` = 0 means one process a core. Processes need `fork`, a CPU and more than one client a round.
    """
    require(workers >= 0, "run.workers", workers, "0 (one a core) or more")
    cores = workers or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else workers or 1
    if name == "auto":
        name = _automatic(network, cores, cohort)
    if name == "vectorized":
        return Choice(name, max(1, BLOCK_FLOATS // network.size), 1)
    if name == "parallel":
        require(_can_fork(network), "run.backend", name, "another one here: processes need fork and a CPU")
        return Choice(name, 1, min(cores, cohort))
    return Choice(name, 1, 1)


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Compute with so many threads for a while; None leaves them as they are."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _automatic(network: Network, cores: int, cohort: int) -> BackendName:
    if _stackable(network) and network.size <= STACK_BELOW:
        return "vectorized"
    return "parallel" if _can_fork(network) and min(cores, cohort) > 1 else "sequential"


def _stackable(network: Network) -> bool:
    """Stacked convolutions become grouped ones, which are slow; buffers and dropout are per client."""
    convolutions = any(isinstance(m, nn.modules.conv._ConvNd) for m in network.module.modules())
    return not (network.buffers or network.stochastic or convolutions)


def _can_fork(network: Network) -> bool:
    return network.device.type == "cpu" and "fork" in multiprocessing.get_all_start_methods()
