"""The gradient of a stack of linear layers, stored as its thin factors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedwcm.core.types import Vec
from fedwcm.engine.fast.products import put_product

if TYPE_CHECKING:
    from fedwcm.engine.fast.linear_stack import LinearStack


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

    def add_to(self, w: Vec) -> None:
        self._put(self.stack.parameters(w), add=True)

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
