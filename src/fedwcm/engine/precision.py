"""The number format in which local training runs a model: float32, or 16 bits by torch's autocast.

Only the forward and backward passes of clients use it. Models, gradients, the method's arithmetic, uploads and all
state stay in float32, and so do losses and evaluation.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

PrecisionName = Literal["fp32", "bf16", "fp16"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

Pairs: TypeAlias = Sequence[tuple[Tensor, Tensor]]
"""Values, each with the gradient with respect to it; both `(K, …)`."""

SMALLEST = 2.0**-100
"""Gradients below it are not scaled up any further."""


@dataclass(frozen=True)
class Precision:
    """A number format by its name."""

    name: PrecisionName = "fp32"

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.name]

    @property
    def is_reduced(self) -> bool:
        return self.name != "fp32"

    @property
    def note(self) -> str:
        """What a run in this precision should say; empty in float32."""
        if not self.is_reduced:
            return ""
        return f"clients compute in {self.name} by autocast; the fast path of linear layers needs fp32"

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context of a forward pass."""
        if not self.is_reduced:
            return nullcontext()
        # The cache of converted weights goes by the parameter, whose memory the engine exchanges.
        return torch.autocast(device.type, self.dtype, cache_enabled=False)

    def restore(self, values: Tensor) -> Tensor:
        """Return outputs of a model in float32."""
        return values.float() if self.is_reduced and values.dtype == self.dtype else values

    def differentiate(self, pairs: Pairs, backward: Callable[[Pairs], Tensor]) -> Tensor:
        """Return the gradients `(K, P)` that a backward pass computes from these pairs.

        The smallest float16 is 6e-8: small gradients would vanish on their way through the layers. As the pass is
        linear, the gradients of the pairs are scaled for it, each client's to a largest entry of about 1, and the
        result is scaled back. Unlike that of `torch.amp.GradScaler`, the factor has no history: a client's
        gradient does not depend on who trained before it, nor where.
        """
        if self.name != "fp16":
            return backward(pairs)
        largest = torch.stack(
            [slope.abs().flatten(1).amax(1) if slope.dim() > 1 else slope.abs() for _, slope in pairs]
        )
        scale = torch.exp2(-largest.amax(0).clamp(min=SMALLEST).log2().ceil())  # a power of two: exact
        scaled = [(value, slope * scale.view(-1, *[1] * (slope.dim() - 1))) for value, slope in pairs]
        return backward(scaled) / scale[:, None]


def precision_problem(precision: Precision, device: torch.device) -> str:
    """Return why a model cannot train in this precision on this device; empty if it can."""
    if not precision.is_reduced:
        return ""
    if precision.name == "fp16" and device.type == "cpu":
        return "float16 gains nothing without the units of a GPU, and bf16 has the range of float32"
    if not torch.amp.is_autocast_available(device.type):
        return "torch has no autocast there"
    try:
        with precision.autocast(device):
            one = torch.ones(1, 1, device=device)
            computed = (one @ one).dtype
    except (RuntimeError, TypeError, ValueError) as error:
        return str(error).partition("\n")[0]
    return "" if computed == precision.dtype else f"torch computes in {computed} there"
