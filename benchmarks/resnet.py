"""Where a local step of J2 goes, ResNet-18 on a batch of 50, and what would make it faster.

    python -m benchmarks.run --groups resnet

One thread; processor time; steps of all variants are taken in turn, and the fastest of each counts. The roofline
is the rate of oneDNN on a large product of matrices, in the same turns.
"""

import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.jobs import CLASSES, JOBS
from fedwcm.engine.network import Network
from fedwcm.models import build_model

JOB, TURNS, LARGE = JOBS["J2"], 5, 1024
PARTS = {
    "convolutions forward": ("aten::mkldnn_convolution", "aten::convolution_overrideable"),
    "convolutions backward": ("aten::convolution_backward", "aten::mkldnn_convolution_backward"),
    "GroupNorm": ("aten::native_group_norm", "aten::native_group_norm_backward"),
    "activations, sums, clipping and update": (
        *("aten::clamp_min", "aten::threshold_backward", "aten::add_", "aten::add", "aten::mul_"),
        *("aten::_foreach_norm", "aten::_foreach_mul_", "aten::_foreach_add_", "aten::linalg_vector_norm"),
    ),
    "pooling": ("aten::max_pool2d_with_indices", "aten::max_pool2d_with_indices_backward"),
    "copies": ("aten::copy_", "aten::clone", "aten::fill_", "aten::zero_"),
}


def measure() -> dict[str, Any]:
    """Measure a step, its parts, and variants of it."""
    torch.set_num_threads(1)
    step, flops = Step(), _flops()
    variants: dict[str, Callable[[], object]] = {
        "as it is (channels last)": step,
        "channels first": Step(layout=torch.contiguous_format),
        "every tap of its convolutions": Step(live=False),
        "bf16 by autocast": Step(dtype=torch.bfloat16),
        "batches of 100, for the same samples": Step(batch=100),
        "torch.compile": Step(compiled=True),
        "product of matrices": _product(),
    }
    fastest = _fastest(variants)
    per_sample = {name: (0.5 if "100" in name else 1.0) * seconds for name, seconds in fastest.items()}
    peak = 2 * LARGE**3 / per_sample.pop("product of matrices")
    return {
        "gflop": round(flops / 1e9, 2),
        "peak_gflops": round(peak / 1e9, 1),
        "seconds": {name: round(seconds, 4) for name, seconds in per_sample.items()},
        "parts": _parts(step),
    }


class Step:
    """A local step: gradient of a batch, clipped, SGD."""

    def __init__(
        self,
        layout: torch.memory_format = torch.channels_last,
        live: bool = True,
        dtype: torch.dtype | None = None,
        batch: int = JOB.batch_size,
        compiled: bool = False,
    ) -> None:
        self.model = build_model(JOB.model, JOB.input_shape, CLASSES, 0)
        Network(self.model)  # replaces what is slow or wrong on a CPU, as every run does
        for module in self.model.modules():
            if not live and type(module).__name__ == "LiveConv2d":
                module.__class__ = nn.Conv2d
        self.parameters: list[Tensor] = list(self.model.parameters())
        self.inputs = torch.randn(batch, *JOB.input_shape).to(memory_format=layout)
        self.labels = torch.arange(batch) % CLASSES
        self.dtype = dtype
        self.forward: Callable[[Tensor], Tensor] = torch.compile(self.model) if compiled else self.model

    def __call__(self) -> None:
        """Take the step."""
        with torch.autocast("cpu", self.dtype or torch.bfloat16, enabled=self.dtype is not None):
            logits = self.forward(self.inputs)
        gradients = torch.autograd.grad(cross_entropy(logits.float(), self.labels), self.parameters)
        norm = torch.stack(torch._foreach_norm(gradients)).norm()
        torch._foreach_mul_(gradients, float((JOB.clip or 1.0) / norm.clamp(min=JOB.clip)))
        with torch.no_grad():
            torch._foreach_add_(self.parameters, gradients, alpha=-1e-3)


def _product() -> Callable[[], Tensor]:
    one, other = torch.randn(LARGE, LARGE), torch.randn(LARGE, LARGE)
    return lambda: torch.ops.mkldnn._linear_pointwise(one, other, None, "none", [], "")


def _fastest(variants: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the fastest of several turns of each; what cannot be run is left out."""
    fastest: dict[str, float] = {}
    for _ in range(TURNS):
        for name, step in list(variants.items()):
            began = time.process_time()
            try:
                step()
            except Exception:  # a machine without a compiler, for one
                del variants[name]
                continue
            fastest[name] = min(fastest.get(name, float("inf")), time.process_time() - began)
    return {name: seconds for name, seconds in fastest.items() if name in variants}


def _flops() -> float:
    step = Step(live=False)
    with FlopCounterMode(display=False) as counter:
        step()
    return float(counter.get_total_flops())


def _parts(step: Step) -> dict[str, float]:
    """Return the shares of a step's time."""
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        for _ in range(2):
            step()
    own = {event.key: event.self_cpu_time_total for event in watched.key_averages()}
    total = sum(own.values())
    shares = {part: round(sum(own.get(name, 0) for name in names) / total, 4) for part, names in PARTS.items()}
    return {**shares, "the rest": round(1 - sum(shares.values()), 4)}


if __name__ == "__main__":
    print(json.dumps(measure()), flush=True)
