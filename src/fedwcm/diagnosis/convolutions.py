"""Are this machine's convolutions right? Each is tried in a process of its own, where it may crash or hang.

    for result in check_convolutions():
        print(result.convolution, result.threads, result.problem or "right")

The outputs and gradients of a layer in float32, with its channels last in memory as in training, are compared with
those of `conv2d` in float64, for which PyTorch does not call oneDNN. The environment variable `ONEDNN_MAX_CPU_ISA`
limits the instruction set, which is how one x86 machine tries the kernels of others.
"""

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from fedwcm.utils.child_process import ChildDiedError, call_in_child, signal_name

# Of the sum of the products' magnitudes. Rounding was at most 2e-6 in thousands of shapes, the fault over 1e-2.
TOLERANCE = 1e-5
REPEATS = 3  # what goes wrong between threads does not go wrong every time


@dataclass(frozen=True)
class Convolution:
    """A layer, and the batch of square images that it is tried on."""

    channels: int
    filters: int
    side: int
    kernel: int
    stride: int
    padding: int
    batch: int
    bias: bool = False
    layer: str = "torch.nn:Conv2d"


@dataclass(frozen=True)
class ConvolutionResult:
    """What came of a convolution: `problem` is empty if its outputs and gradients are right."""

    convolution: Convolution
    isa: str | None
    threads: int
    problem: str


PLAIN_POINTWISE = Convolution(channels=4, filters=8, side=32, kernel=1, stride=2, padding=0, batch=8)
"""What oneDNN 3.12 gets wrong under AVX2. Models of this package do not use it."""

EXAMPLES = (
    Convolution(channels=3, filters=32, side=16, kernel=3, stride=1, padding=1, batch=8, bias=True),
    Convolution(channels=3, filters=16, side=16, kernel=7, stride=2, padding=3, batch=8),
    Convolution(channels=4, filters=8, side=16, kernel=3, stride=2, padding=1, batch=8),
    replace(PLAIN_POINTWISE, layer="fedwcm.models.convolutions:LiveConv2d"),
)
"""Convolutions of the kinds that models of this package use."""


def check_convolutions(
    convolutions: Sequence[Convolution] = EXAMPLES,
    *,
    isas: Sequence[str | None] = (None,),
    threads: Sequence[int] = (1, 2),
    timeout: float = 60.0,
) -> list[ConvolutionResult]:
    """Try each convolution in a process of its own, with each instruction set and number of threads.

    `isas` are limits for oneDNN (`SSE41`, `AVX2`, `AVX512_CORE`, …); None leaves it as it is. A convolution that
    takes longer than `timeout` seconds hangs.
    """
    trials = [
        {"convolution": asdict(each), "isa": isa, "threads": count, "timeout": timeout}
        for isa, count, each in product(isas, threads, convolutions)
    ]
    # Not from here: in a process that has computed already, the instruction set is chosen and a fork may hang.
    launcher = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import answer_trials; answer_trials()"],
        input=json.dumps(trials),
        # Threads that wait must not spin: on a busy machine, they would keep each other from coming to an end.
        env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    problems = json.loads(launcher.stdout)
    settings = product(isas, threads, convolutions)
    return [ConvolutionResult(c, isa, n, problem) for (isa, n, c), problem in zip(settings, problems, strict=True)]


def _problem(convolution: dict[str, Any], isa: str | None, threads: int, timeout: float) -> str:
    """Try one convolution in a process of its own."""
    context, tried = multiprocessing.get_context(), Convolution(**convolution)
    try:
        error = call_in_child(context, _try, tried, isa, threads, timeout=timeout)
    except TimeoutError as late:
        return str(late)
    except ChildDiedError as died:
        return f"ended by {signal_name(died.exit_code) or f'exit code {died.exit_code}'}"
    return "" if error <= TOLERANCE else f"wrong by {error:.1e} of the sum of magnitudes"


def _try(convolution: Convolution, isa: str | None, threads: int) -> float:
    if isa is not None:
        os.environ["ONEDNN_MAX_CPU_ISA"] = isa  # oneDNN reads it when it is first used
    torch.set_num_threads(threads)
    return _error(convolution)


def _error(c: Convolution) -> float:
    """Return the largest error of an output or gradient, relative to the magnitudes it was summed from."""
    generator = torch.Generator().manual_seed(0)
    layer = resolve_name(c.layer)(c.channels, c.filters, c.kernel, c.stride, c.padding, bias=c.bias)
    layer.to(memory_format=torch.channels_last)
    x = torch.randn(c.batch, c.channels, c.side, c.side, generator=generator)
    inputs = [x.contiguous(memory_format=torch.channels_last).requires_grad_(), *layer.parameters()]
    by_y = torch.randn(layer(x).shape, generator=generator).contiguous(memory_format=torch.channels_last)
    doubles = [each.detach().double() for each in (*inputs, by_y)]
    exact, magnitudes = _results(c, doubles), _results(c, [each.abs() for each in doubles])
    worst = 0.0
    for _ in range(REPEATS):
        y = layer(inputs[0])
        for got, want, magnitude in zip(_with_gradients(y, inputs, by_y), exact, magnitudes, strict=True):
            # Where nothing was summed, as over taps that meet padding only, the result is exactly zero.
            error = (got - want).abs() / magnitude.clamp_min(torch.finfo(torch.float64).tiny)
            worst = max(worst, float(error.max().nan_to_num(torch.inf)))
    return worst


def _results(c: Convolution, doubles: list[Tensor]) -> list[Tensor]:
    *inputs, by_y = (each.requires_grad_() for each in doubles)
    x, weight, *bias = inputs
    y = conv2d(x, weight, bias[0] if bias else None, c.stride, c.padding)
    return _with_gradients(y, inputs, by_y)


def _with_gradients(y: Tensor, inputs: list[Tensor], by_y: Tensor) -> list[Tensor]:
    # Of a scalar: to be given gradients of outputs, PyTorch first imports SymPy, which takes a second.
    return [y.detach(), *torch.autograd.grad((y * by_y).sum(), inputs)]


def answer_trials() -> None:
    """Try what standard input lists, and print the problems: the launcher's whole work."""
    if "fork" in multiprocessing.get_all_start_methods():  # PyTorch is then imported once
        multiprocessing.set_start_method("fork")
    print(json.dumps([_problem(**trial) for trial in json.load(sys.stdin)]))
