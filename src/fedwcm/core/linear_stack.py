"""A third way to run a block of models: stacks of linear layers, differentiated by hand.

The layers below the head are batched matrix products outside autograd, whose gradients are written straight into
the flat vector: no graph, no copies. The head and the objective stay with autograd, so every objective works as it
does with any other model. Agrees with the other ways to float32 rounding.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedwcm.core.forward import Forward, Stacked
from fedwcm.core.network import Network, Slot
from fedwcm.core.objective import View
from fedwcm.core.types import Vec

Activation = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]
"""A function that works in place, and the gradient before it from the gradient after it and its own value."""

ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: (torch.relu_, lambda gradient, value: torch.ops.aten.threshold_backward(gradient, value, 0)),
    nn.Tanh: (torch.tanh_, torch.ops.aten.tanh_backward),
    nn.Sigmoid: (torch.sigmoid_, torch.ops.aten.sigmoid_backward),
}


@dataclass(frozen=True, eq=False)
class Affine:
    """A linear layer and the activation behind it; its slots say where it stands in the flat vector."""

    weight: Slot
    bias: Slot | None
    activation: Activation | None = None

    def parameters(self, w: Vec) -> list[Tensor]:
        """The weights `(K, out, in)` and biases `(K, 1, out)` of the models `w (K, P)`, as views."""
        weight = w[:, self.weight.start : self.weight.stop].view(-1, *self.weight.shape)
        return [weight] if self.bias is None else [weight, w[:, None, self.bias.start : self.bias.stop]]

    def backward(self, gradient: Tensor, value: Tensor, inputs: Tensor, into: Vec) -> Tensor:
        """Write the gradient of weight and bias into the flat vectors; the gradient before the activation."""
        if self.activation is not None:
            gradient = self.activation[1](gradient, value)
        weight, *bias = self.parameters(into)
        torch.bmm(gradient.transpose(1, 2), inputs, out=weight)
        for b in bias:
            torch.sum(gradient, dim=1, keepdim=True, out=b)
        return gradient


@dataclass(frozen=True, eq=False)
class Tape:
    """What a forward pass leaves behind for the backward one."""

    w: Vec
    values: list[Tensor]
    head: list[Tensor]


class LinearStack:
    """Many clients at a time, of a model that is nothing but linear layers with activations between them."""

    def __init__(self, network: Network) -> None:
        layers = affine_layers(network)
        if layers is None:
            raise ValueError("the model is not a plain stack of linear layers with ReLU, tanh or sigmoid between")
        self.network = network
        *self._body, self._head = layers
        self._tape: Tape | None = None

    def start(self, buffers: Vec) -> None:
        """Nothing to begin: such a model has neither buffers nor modes."""

    def __call__(self, w: Vec, inputs: Tensor, track: bool) -> View:
        w = w.detach()
        values = [inputs.flatten(start_dim=2)]
        for layer in self._body:
            value = _affine(values[-1], layer.parameters(w))
            values.append(value if layer.activation is None else layer.activation[0](value))
        head = self._head.parameters(w)
        if torch.is_grad_enabled():
            for leaf in (*head, *values[-1:] * bool(self._body)):
                leaf.requires_grad_()
        self._tape = tape = Tape(w, values, head)

        def at(x: Vec) -> View:
            with torch.no_grad():
                view = self(x.expand(len(w), -1), inputs, track=False)
            self._tape = tape
            return view

        return View(_affine(values[-1], head), values[-1], lambda features: _affine(features, head), at)

    def gradient(self, loss: Tensor) -> Vec:
        assert self._tape is not None
        w, values, head = self._tape.w, self._tape.values, self._tape.head
        leaves = [*head, values[-1]] if self._body else head
        found = torch.autograd.grad(loss.sum(), leaves, materialize_grads=True)
        into = torch.empty(w.shape, dtype=w.dtype, device=w.device)
        for mine, theirs in zip(self._head.parameters(into), found, strict=False):
            mine.copy_(theirs)
        gradient = found[-1]
        with torch.no_grad():
            for i in reversed(range(len(self._body))):
                before = self._body[i].backward(gradient, values[i + 1], values[i], into)
                if i:
                    gradient = torch.bmm(before, self._body[i].parameters(w)[0])
        return into

    def buffers(self) -> Tensor:
        raise AssertionError("a stack of linear layers has no buffers")


def _affine(inputs: Tensor, parameters: list[Tensor]) -> Tensor:
    weight, *bias = parameters
    transposed = weight.transpose(1, 2)
    return torch.baddbmm(bias[0], inputs, transposed) if bias else torch.bmm(inputs, transposed)


def stack(network: Network) -> Forward:
    """The best way to run many models of this network at a time."""
    return LinearStack(network) if affine_layers(network) else Stacked(network)


def affine_layers(network: Network) -> list[Affine] | None:
    """The model as a stack of linear layers, the head last; None if it is anything else."""
    slots = {slot.name: slot for slot in network.slots}
    layers: list[Affine] = []
    for name, module in _in_order("", network.module):
        trained = all(f"{name}{own}" in slots for own, _ in module.named_parameters(recurse=False))
        if type(module) is nn.Linear and trained:
            layers.append(Affine(slots.pop(f"{name}weight"), slots.pop(f"{name}bias", None)))
        elif type(module) in ACTIVATIONS and layers and layers[-1].activation is None:
            layers[-1] = Affine(layers[-1].weight, layers[-1].bias, ACTIVATIONS[type(module)])
        elif not (type(module) is nn.Flatten and not layers):
            return None
    plain = layers and not slots and not network.stochastic and layers[-1].activation is None
    return layers if plain else None


def _in_order(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that a sequence runs one after the other, with the prefix of their parameters."""
    if type(module).forward is not nn.Sequential.forward:
        yield name, module
        return
    for child, inner in module._modules.items():  # unlike named_children, a module that is used twice comes twice
        if inner is not None:
            yield from _in_order(f"{name}{child}.", inner)
