"""The products of linear layers, for a block of models, by the faster of torch's two libraries.

torch multiplies by MKL. On AMD's processors MKL leaves AVX-512 unused; oneDNN, which comes with torch as well,
uses it and is up to twice as fast on large products, for calls that cost more. It multiplies for one model at a
time. Both agree up to float32 rounding; which one is used depends on the processor and on the size of one model's
product, never on the block.
"""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

LARGE = 2**22
"""Multiplications in a product from which oneDNN gains more than its calls cost."""

SMALL = 2**12
"""Layer size up to which one batched product, added afterwards, is faster than one product per client.

There is no need for either where the weights of all clients are contiguous.
"""

TINY = 400
"""Multiplications below which torch forms a product in a loop of its own, which rounds in another order."""


def affine(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `inputs (K, b, in) @ weight (K, out, in)ᵀ + bias (K, 1, out)`, which autograd can differentiate."""
    tracked = torch.is_grad_enabled() and (inputs.requires_grad or weight.requires_grad)
    if tracked or not _by_onednn(inputs, weight):
        return torch.bmm(inputs, weight.mT) if bias is None else torch.baddbmm(bias, inputs, weight.mT)
    biases = [None] * len(weight) if bias is None else bias[:, 0]
    return _stack([_multiply(*layer) for layer in zip(inputs, weight, biases, strict=True)])


def multiply(gradient: Tensor, weight: Tensor) -> Tensor:
    """Return `gradient (K, b, out) @ weight (K, out, in)`: the gradient at the inputs of a layer."""
    if not _by_onednn(gradient, weight):
        return torch.bmm(gradient, weight)
    return _stack([_multiply(own, w.T) for own, w in zip(gradient, weight, strict=True)])


def put_product(into: Tensor, gradient: Tensor, inputs: Tensor, add: bool) -> None:
    """Overwrite `into (K, out, in)` with `gradient (K, b, out)ᵀ @ inputs (K, b, in)`, or add that to it."""
    put = Tensor.add_ if add else Tensor.copy_
    if _by_onednn(inputs, into):
        for weight, own, batch in zip(into, gradient, inputs, strict=True):
            put(weight, _multiply(own.T, batch.T))
    elif into.shape[1:].numel() > SMALL or _is_batched(into, inputs.shape[1]):
        into.baddbmm_(gradient.mT, inputs, beta=int(add))
    else:
        put(into, torch.bmm(gradient.mT, inputs))


def _is_batched(into: Tensor, rows: int) -> bool:
    """Return whether one call adds products of so many rows to these weights, each product rounded by itself."""
    return len(into) > 1 and into.is_contiguous() and into[0].numel() * rows >= TINY


def _by_onednn(rows: Tensor, weight: Tensor) -> bool:
    """Return whether the products of these rows with these weights are oneDNN's."""
    _, out, into = weight.shape
    large = rows.shape[1] * out * into >= LARGE
    return large and weight.is_cpu and weight.dtype == torch.float32 and prefers_onednn()


@cache
def prefers_onednn() -> bool:
    """Return whether large products are faster by oneDNN on this machine: on AMD's processors with AVX-512."""
    known = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return known and torch.backends.cpu.get_cpu_capability() == "AVX512" and _is_amd()


def _is_amd() -> bool:
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False


def _multiply(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `inputs @ weightᵀ + bias` of one model."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")
    return product


def _stack(products: list[Tensor]) -> Tensor:
    """Return the products of all models; that of a single one is not copied."""
    return torch.stack(products) if len(products) > 1 else products[0][None]
