"""A third way to run a block of models: stacks of linear layers, differentiated by hand.

The layers are batched matrix products outside autograd, whose gradients are written straight into the flat vector:
no graph, no copies. The objective stays with autograd, so every objective works as it does with any other model.
Agrees with the other ways to float32 rounding.
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
        weight = self.weight.of(w)
        return [weight] if self.bias is None else [weight, self.bias.of(w)[:, None]]

    def write_gradient(self, into: Vec, gradient: Tensor, inputs: Tensor) -> None:
        """Put the gradient of weight and bias into its place, given the gradient at the layer's output."""
        weight, *bias = self.parameters(into)
        torch.bmm(gradient.transpose(1, 2), inputs, out=weight)
        for b in bias:
            torch.sum(gradient, dim=1, keepdim=True, out=b)


@dataclass(frozen=True, eq=False)
class Tape:
    """What a forward pass leaves behind: each layer's parameters, and the values from the inputs to the logits.

    An objective sees the logits, the features and the head's parameters as independent variables, each the start
    of a graph; the backward pass joins them.
    """

    w: Vec
    parameters: list[list[Tensor]]
    values: list[Tensor]

    @property
    def variables(self) -> list[Tensor]:
        return [self.values[-1], self.values[-2], *self.parameters[-1]]


class LinearStack:
    """Many clients at a time, of a model that is nothing but linear layers with activations between them."""

    def __init__(self, network: Network) -> None:
        layers = affine_layers(network)
        if layers is None:
            raise ValueError("the model is not a plain stack of linear layers with ReLU, tanh or sigmoid between")
        self.network, self._layers = network, layers
        self._tape: Tape | None = None

    def start(self, buffers: Vec) -> None:
        """Nothing to begin: such a model has neither buffers nor modes."""

    def __call__(self, w: Vec, inputs: Tensor, track: bool) -> View:
        w = w.detach()
        parameters = [layer.parameters(w) for layer in self._layers]
        values = [inputs.flatten(start_dim=2).detach()]
        for layer, own in zip(self._layers, parameters, strict=True):
            value = _affine(values[-1], own)
            values.append(value if layer.activation is None else layer.activation[0](value))
        self._tape = tape = Tape(w, parameters, values)
        if torch.is_grad_enabled():
            for variable in tape.variables:
                variable.requires_grad_()

        def at(x: Vec) -> View:
            with torch.no_grad():
                view = self(x.expand(len(w), -1), inputs, track=False)
            self._tape = tape
            return view

        return View(values[-1], values[-2], lambda features: _affine(features, parameters[-1]), at)

    def gradient(self, loss: Tensor) -> Vec:
        assert self._tape is not None
        w, parameters, values = self._tape.w, self._tape.parameters, self._tape.values
        found = torch.autograd.grad(loss, self._tape.variables, torch.ones_like(loss), allow_unused=True)
        by_logits, by_features, *by_head = found
        gradient = torch.zeros_like(values[-1]) if by_logits is None else by_logits
        into = torch.empty(w.shape, dtype=w.dtype, device=w.device)
        with torch.no_grad():
            for i in reversed(range(len(self._layers))):
                layer = self._layers[i]
                if layer.activation is not None:
                    gradient = layer.activation[1](gradient, values[i + 1])
                layer.write_gradient(into, gradient, values[i])
                if i:
                    gradient = torch.bmm(gradient, parameters[i][0])
                    if layer is self._layers[-1] and by_features is not None:
                        gradient += by_features
            for mine, direct in zip(self._layers[-1].parameters(into), by_head, strict=True):
                if direct is not None:
                    mine += direct
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
