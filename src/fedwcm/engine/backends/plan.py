"""The choice of a backend: made by fixed rules, not by timing, and without effect on the result.

Whether the models of a network can be stacked is tried on a tiny batch, before the first round.
"""

import multiprocessing
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fedwcm.core.checks import require
from fedwcm.core.torch_rng import own_torch_generator
from fedwcm.engine.fast.linear_stack import LinearStack, linear_layers
from fedwcm.engine.forward import Forward, SequentialForward, VmapForward
from fedwcm.engine.network import Network

SLOW = "There is a performance drop because we have not yet implemented the batching rule"
"""How torch's warning begins that it runs an operation for one model after the other."""

TOLERANCE = 1e-3
ROUNDINGS = 8
"""Steps of a 16-bit format by which gradients may differ instead, if training is in such a format."""


def stacked_forward(network: Network) -> Forward:
    """Return the fastest way to run many models of this network at a time."""
    return LinearStack(network) if linear_layers(network) else VmapForward(network)


def stacking_problem(network: Network, inputs: Tensor) -> str | None:
    """Return why models of this network cannot be stacked, None if they can.

    Two models are tried on the first of these inputs `(b, …)`, padded as a short batch is. There is a problem if
    an operation has no batching rule (as in recurrent layers) or only a slow one, if it draws random numbers, or
    if gradients differ from those that the models have one at a time, as with BatchNorm, which feels the padding.
    """
    x, buffers = network.initial()
    padded = torch.cat([inputs[:1], torch.zeros_like(inputs[:1])])
    models, batches = torch.stack([x, 0.9 * x]), torch.stack([padded, padded])
    try:
        with warnings.catch_warnings(), own_torch_generator():
            warnings.filterwarnings("error", message=SLOW)
            together = _gradients(stacked_forward(network), x, buffers, models, batches)
            one = SequentialForward(network)
            alone = [_gradients(one, x, buffers, models[k : k + 1], batches[:1, :1]) for k in range(len(models))]
    except Exception as error:  # the model is the user's: it may fail in any way
        return " ".join(str(error).split()) or type(error).__name__
    finally:
        SequentialForward(network).start(x, buffers)  # the module holds the initial model again
    difference = float((together - torch.cat(alone)).abs().max())
    tolerance = max(TOLERANCE, ROUNDINGS * torch.finfo(network.precision.dtype).eps)
    close = difference <= tolerance * (1.0 + float(together.abs().max()))
    return None if close else f"gradients of stacked models differ by {difference:.2g}"


def _gradients(forward: Forward, x: Tensor, buffers: Tensor, models: Tensor, inputs: Tensor) -> Tensor:
    """Return the gradients of the scores of each model's first sample."""
    forward.start(x, buffers)
    logits = forward(models, inputs, track=False).logits
    first = torch.zeros_like(logits)
    first[:, 0] = 1.0
    return forward.backward((logits, first)).vector()


BackendName = Literal["auto", "sequential", "vectorized", "parallel", "ray"]

STACK_BELOW = 2**16
"""Model size up to which stacked clients are faster than one at a time: calls then cost more than arithmetic.

Does not apply to stacks of linear layers, which are faster stacked at every size.
"""

BLOCK_FLOATS = 2**22
"""Parameters in one stacked block: enough to hide the call overhead, few enough for the cache."""

WORTH_FORKING = 2**20
"""Parameters times clients per round from which a second process gains more than its messages cost."""


CHILDLESS = "a daemonic process, as in multiprocessing.Pool, may have no children"


@dataclass(frozen=True)
class ExecutionPlan:
    """How clients are trained: the size of a block, stacked or one by one, and the number of processes.

    `note` says why clients that would be stacked by the rules are not; empty otherwise.
    """

    name: str
    block: int
    workers: int
    stacked: bool = False
    note: str = ""

    @property
    def threads(self) -> int | None:
        """Threads of this process during training; None for the default.

        With stacked clients or workers, more than one thread would only cause waiting.
        """
        if self.name == "ray":  # training is elsewhere
            return None
        return 1 if self.stacked or self.workers > 1 else None

    def forward(self, network: Network) -> Forward:
        return stacked_forward(network) if self.stacked else SequentialForward(network)


def choose(
    name: BackendName, workers: int, network: Network, cohort: int, sample: Tensor | None = None
) -> ExecutionPlan:
    """Return the plan for a backend name; `auto` stacks models and uses all cores where that is faster.

    `workers` = 0 means one process per core. Processes need `fork`, a CPU and more than one client per round.
    Models that are to be stacked are tried on `sample`, a tiny batch `(b, …)`, if it is given: if that fails,
    clients train one at a time, unless stacking was asked for by name.
    """
    require(workers >= 0, "run.workers", workers, "0 (one per core) or more")
    cores = min(cohort, workers or usable_cores())
    stacked, problem = _stacking(name, network, sample)
    note = problem and f"clients train one at a time: models of this network cannot be stacked ({problem})"
    if name == "auto":
        worth = cores > 1 and (not stacked or _convolutions(network) or network.size * cohort >= WORTH_FORKING)
        if worth and multiprocessing.current_process().daemon:
            note = f"{note}; {CHILDLESS}" if note else f"clients train in one process: {CHILDLESS}"
        worth = worth and _forkable(network)
        name = "parallel" if worth else "vectorized" if stacked else "sequential"
    if name == "sequential":
        return ExecutionPlan(name, 1, 1, note=note)
    if name == "vectorized":
        allowed = f"auto, sequential or parallel: models of this network cannot be stacked ({problem})"
        require(not problem, "run.backend", name, allowed)
        return ExecutionPlan(name, stacked_block(network, cohort), 1, stacked=True, note=note)
    if name == "ray":  # in blocks for as many workers as the cluster turns out to have
        return ExecutionPlan(name, 1, 1, stacked, note)
    require(
        _forkable(network), "run.backend", name, f"another backend: processes need fork and a CPU, and {CHILDLESS}"
    )
    return ExecutionPlan(name, stacked_block(network, -(-cohort // cores)) if stacked else 1, cores, stacked, note)


def _stacking(name: BackendName, network: Network, sample: Tensor | None) -> tuple[bool, str]:
    """Return whether clients are to be stacked and, if it was tried in vain, what went wrong."""
    if name == "sequential":
        return False, ""
    if linear_layers(network):
        return True, ""
    stacked = name == "vectorized" or (_stackable(network) and network.size <= STACK_BELOW)
    problem = (stacking_problem(network, sample) or "") if stacked and sample is not None else ""
    return stacked and not problem, problem


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Set torch's thread count within the block; None leaves it unchanged."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def stacked_block(network: Network, clients: int) -> int:
    """Return the number of clients per block: blocks of equal size, small enough for the cache."""
    blocks = -(-clients // max(1, BLOCK_FLOATS // network.size))
    return -(-clients // blocks)


def usable_cores() -> int:
    """Return the number of cores that this process may use; 1 where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _stackable(network: Network) -> bool:
    """Return whether models can be stacked efficiently.

    Stacked convolutions become grouped convolutions, which are slow in two and three dimensions; buffers and
    dropout differ between clients; gradient hooks are those of the module's own parameters.
    """
    slow = any(not isinstance(layer, nn.Conv1d) for layer in _convolutions(network))
    return not (network.buffers or network.stochastic or network.has_gradient_hooks or slow)


def _convolutions(network: Network) -> list[nn.Module]:
    return [module for module in network.module.modules() if isinstance(module, nn.modules.conv._ConvNd)]


def can_fork() -> bool:
    """Return whether the system can fork processes, which inherit all data."""
    return "fork" in multiprocessing.get_all_start_methods()


def _forkable(network: Network) -> bool:
    return network.device.type == "cpu" and can_fork() and not multiprocessing.current_process().daemon
