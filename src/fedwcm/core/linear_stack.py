"""A third way to run a block of models: stacks of linear layers, differentiated by hand.

The layers are batched matrix products outside autograd, whose gradients go straight to where they are wanted: into
one flat vector, or onto the models. An objective that does not know its gradient is left to autograd, as with any
other model. Agrees with the other ways to float32 rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedwcm.core.affine import affine_layers
from fedwcm.core.blend import Slopes
from fedwcm.core.forward import Forward, Stacked
from fedwcm.core.network import Network
from fedwcm.core.objective import View
from fedwcm.core.types import Vec

SMALL = 2**12
"""Weights of a layer up to which all clients' products at once, then added, beat one product after another."""


@dataclass(frozen=True, eq=False)
class Tape:
    """What a forward pass leaves behind: each layer's parameters, and the values from the inputs to the logits.

    An objective sees the logits, the features and the head's parameters as independent variables, each the start
    of a graph; the backward pass joins them.
    """

    parameters: list[list[Tensor]]
    values: list[Tensor]
    head: list[Tensor]

    @property
    def variables(self) -> list[Tensor]:
        return [self.values[-1], self.values[-2], *self.head]


class LinearStack:
    """Many clients at a time, of a model that is nothing but linear layers with activations between them."""

    def __init__(self, network: Network) -> None:
        layers = affine_layers(network)
        if layers is None:
            raise ValueError("the model is not a plain stack of linear layers with ReLU, tanh or sigmoid between")
        self.network, self.layers = network, layers
        self._tape: Tape | None = None
        self._seen: tuple[Vec, list[list[Tensor]]] | None = None

    def start(self, x: Vec, buffers: Vec) -> None:
        """Forget the clients before; such a model has neither buffers nor modes."""
        self._tape = self._seen = None

    def parameters(self, w: Vec) -> list[list[Tensor]]:
        """Each layer's parameters as views of `w (K, P)`; made once for a vector that comes again and again."""
        if self._seen is None or not _same(self._seen[0], w):
            self._seen = w, [layer.parameters(w) for layer in self.layers]
        return self._seen[1]

    def __call__(self, w: Vec, inputs: Tensor, track: bool) -> View:
        parameters = self.parameters(w.detach())
        values = [inputs.flatten(start_dim=2).detach()]
        for layer, own in zip(self.layers, parameters, strict=True):
            value = _affine(values[-1], own)
            values.append(value if layer.activation is None else layer.activation[0](value))
        self._tape = tape = Tape(parameters, values, [own.detach() for own in parameters[-1]])
        if torch.is_grad_enabled():
            for variable in tape.variables:
                variable.requires_grad_()

        def at(x: Vec) -> View:
            with torch.no_grad():
                view = self(x.expand(len(w), -1), inputs, track=False)
            self._tape = tape
            return view

        return View(values[-1], values[-2], lambda features: _affine(features, tape.head), at)

    def backward(self, outputs: Tensor, by_outputs: Tensor) -> Slopes:
        tape = self._tape
        assert tape is not None
        found: Sequence[Tensor | None] = (by_outputs, None)
        if outputs is not tape.values[-1]:
            found = torch.autograd.grad(outputs, tape.variables, by_outputs, allow_unused=True)
        by_logits, by_features, *by_head = found
        gradient = torch.zeros_like(tape.values[-1]) if by_logits is None else by_logits
        by_values = [gradient]
        with torch.no_grad():
            for i in reversed(range(1, len(self.layers))):
                gradient = torch.bmm(gradient, tape.parameters[i][0])
                if i == len(self.layers) - 1 and by_features is not None:
                    gradient += by_features
                activation = self.layers[i - 1].activation
                gradient = gradient if activation is None else activation[1](gradient, tape.values[i])
                by_values.append(gradient)
        return LayerSlopes(self, tape.values[:-1], by_values[::-1], by_head)

    def buffers(self) -> Tensor:
        raise AssertionError("a stack of linear layers has no buffers")


@dataclass(frozen=True, eq=False)
class LayerSlopes:
    """A gradient as the factors of each layer's: its inputs, and the gradient at its output before activation."""

    stack: LinearStack
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
        """Write the gradient over these parameters, or add it to them."""
        put = Tensor.add_ if add else Tensor.copy_
        for inputs, gradient, (weight, *bias) in zip(self.inputs, self.by_outputs, parameters, strict=True):
            if weight.shape[1:].numel() > SMALL:
                weight.baddbmm_(gradient.mT, inputs, beta=int(add))
            else:
                put(weight, torch.bmm(gradient.mT, inputs))
            for b in bias:
                put(b, gradient.sum(dim=1, keepdim=True))
        for own, direct in zip(parameters[-1], self.by_head, strict=False):
            if direct is not None:  # from an objective that uses the head itself
                own += direct


def stack(network: Network) -> Forward:
    """The best way to run many models of this network at a time."""
    return LinearStack(network) if affine_layers(network) else Stacked(network)


def _affine(inputs: Tensor, parameters: list[Tensor]) -> Tensor:
    weight, *bias = parameters
    return torch.baddbmm(bias[0], inputs, weight.mT) if bias else torch.bmm(inputs, weight.mT)


def _same(one: Vec, other: Vec) -> bool:
    """Whether two tensors are the same numbers in memory; the one is kept, so its address cannot be another's."""
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.stride() == other.stride()
