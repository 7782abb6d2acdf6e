"""Ascended models in factored form: each moved a step up its own gradient, without computing dense weights.

A layer's gradient on a batch is dᵀv, with its inputs v and the gradient d at its output. If its weight is moved by
s·dᵀv and its bias by s·Σd, the layer gives u·Wᵀ + b + (u·vᵀ + 1)·s·d for inputs u: products with the batch, which
is small, instead of products with the layer. On the same batch, the first layer's u is v, and its u·Wᵀ + b is
already known.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedwcm.core.batch import Outputs
from fedwcm.core.perturbation import scale_to
from fedwcm.core.types import Vec
from fedwcm.engine.fast.products import put_product
from fedwcm.engine.forward import shift

if TYPE_CHECKING:
    from fedwcm.engine.fast.linear_stack import LinearStack, Tape


@dataclass(frozen=True, eq=False)
class FactoredGradient:
    """Each layer's inputs, and the gradient at its output before activation; their product is its gradient.

    `by_head` is what a loss that uses the head itself adds to the gradient of the head's parameters.
    """

    stack: "LinearStack"
    inputs: list[Tensor]
    by_outputs: list[Tensor]
    by_head: Sequence[Tensor | None]

    def vector(self) -> Vec:
        like = self.by_outputs[0]
        into = torch.empty(len(like), self.stack.network.size, dtype=like.dtype, device=like.device)
        self._put([layer.parameters(into) for layer in self.stack.layers], add=False)
        return into

    @torch.no_grad()
    def add_to(self, w: Vec, keep: Tensor | None = None, offset: Vec | None = None) -> None:
        parameters = self.stack.parameters(w)
        if not self.stack.holds(w):
            shift(w, keep, offset)
        elif keep is not None or offset is not None:
            factor = None if keep is None else keep[..., None]
            rows = None if offset is None else offset.view(-1, offset.shape[-1])
            for layer, own in zip(self.stack.layers, parameters, strict=True):
                offsets = [None, None] if rows is None else layer.parameters(rows)
                for value, by in zip(own, offsets, strict=False):
                    shift(value, factor, by)
        self._put(parameters, add=True)

    @torch.no_grad()
    def _put(self, parameters: list[list[Tensor]], add: bool) -> None:
        """Overwrite these parameters with the gradient, or add it to them."""
        put = Tensor.add_ if add else Tensor.copy_
        for inputs, gradient, (weight, *bias) in zip(self.inputs, self.by_outputs, parameters, strict=True):
            put_product(weight, gradient, inputs, add)
            for b in bias:
                put(b, gradient.sum(dim=1, keepdim=True))
        for own, direct in zip(parameters[-1], self.by_head, strict=False):
            if direct is not None:
                own += direct


@dataclass(frozen=True, eq=False)
class LowRankShift:
    """The shift of a layer in factored form: v, s·d, and whether it has a bias."""

    inputs: Tensor
    scaled: Tensor
    bias: bool

    def forward(self, u: Tensor) -> Tensor:
        """Return what the shift adds to the layer's output for inputs u."""
        return torch.bmm(torch.bmm(u, self.inputs.mT) + float(self.bias), self.scaled)

    def backward(self, gradient: Tensor) -> Tensor:
        """Return what the shift adds to the gradient at the layer's inputs, given the gradient at its output."""
        return torch.bmm(torch.bmm(gradient, self.scaled.mT), self.inputs)


@dataclass(frozen=True, eq=False)
class AscendedModels:
    """The models of a tape, each moved up its gradient, with their first layer's output on the tape's batch."""

    stack: "LinearStack"
    tape: "Tape"
    shifts: list[LowRankShift]
    first: Tensor

    def outputs(self) -> Outputs:
        """Return the ascended models' outputs on the batch that their gradient was computed on."""
        return self.stack.run(self.tape.parameters, self.tape.values[0], self.shifts, self.first)


@torch.no_grad()
def ascend(gradient: FactoredGradient, tape: "Tape", rho: float) -> AscendedModels:
    """Return the models moved by rho along their gradients."""
    biases = [layer.bias is not None for layer in gradient.stack.layers]
    factors = list(zip(gradient.inputs, gradient.by_outputs, biases, strict=True))
    among_inputs = [torch.bmm(v, v.mT) + float(bias) for v, _, bias in factors]
    squares = [
        (gram * torch.bmm(d, d.mT)).sum(dim=(1, 2), keepdim=True)
        for gram, (_, d, _) in zip(among_inputs, factors, strict=True)
    ]
    scale = scale_to(rho, torch.stack(squares).sum(dim=0).clamp(min=0).sqrt())
    shifts = [LowRankShift(v, scale * d, bias) for v, d, bias in factors]
    return AscendedModels(gradient.stack, tape, shifts, tape.first + torch.bmm(among_inputs[0], shifts[0].scaled))
