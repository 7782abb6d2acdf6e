"""Detection of models that consist only of linear layers with activations in between."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedwcm.core.layout import ParamSlice
from fedwcm.core.types import Vec
from fedwcm.engine.network import Network, is_idle_dropout

Activation = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]
"""An activation function, and its backward: the input gradient from the output gradient and the output."""

ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: (torch.relu, lambda gradient, value: torch.ops.aten.threshold_backward(gradient, value, 0)),
    nn.Tanh: (torch.tanh, torch.ops.aten.tanh_backward),
    nn.Sigmoid: (torch.sigmoid, torch.ops.aten.sigmoid_backward),
}


@dataclass(frozen=True, eq=False)
class LinearLayer:
    """A linear layer and the activation after it, with the slices of its parameters in the flat vector."""

    weight: ParamSlice
    bias: ParamSlice | None
    activation: Activation | None = None

    def parameters(self, w: Vec) -> list[Tensor]:
        """Return the weights `(K, out, in)` and biases `(K, 1, out)` of the models `w (K, P)`, as views."""
        weight = self.weight.of(w)
        return [weight] if self.bias is None else [weight, self.bias.of(w)[:, None]]


def linear_layers(network: Network) -> list[LinearLayer] | None:
    """Return the model as a list of linear layers, the head last; None if it has any other structure.

    The hand-written passes over such a list are in float32 and call no hooks, so there is none for a network in
    another precision or with hooks.
    """
    if network.precision.is_reduced or network.has_hooks:
        return None
    slices = {part.name: part for part in network.layout.slices}
    layers: list[LinearLayer] = []
    for name, module in _in_order("", network.module):
        if type(module) is nn.Identity or is_idle_dropout(module):
            continue
        trained = all(f"{name}{own}" in slices for own, _ in module.named_parameters(recurse=False))
        if type(module) is nn.Linear and trained:
            layers.append(LinearLayer(slices.pop(f"{name}weight"), slices.pop(f"{name}bias", None)))
        elif type(module) in ACTIVATIONS and layers and layers[-1].activation is None:
            layers[-1] = LinearLayer(layers[-1].weight, layers[-1].bias, ACTIVATIONS[type(module)])
        elif not (type(module) is nn.Flatten and not layers):
            return None
    plain = layers and not slices and not network.stochastic and layers[-1].activation is None
    return layers if plain else None


def _in_order(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that a sequence runs in order, with the prefix of their parameter names."""
    if type(module).forward is not nn.Sequential.forward:
        yield name, module
        return
    # Unlike named_children, this yields a module twice if it is used twice.
    for child, inner in module._modules.items():
        if inner is not None:
            yield from _in_order(f"{name}{child}.", inner)
