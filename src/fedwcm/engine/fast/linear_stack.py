"""A third way to run a block of models: stacks of linear layers with a hand-written backward pass.

The layers are batched matrix products outside autograd, and their gradients are written directly to their
destination: into one flat vector, or onto the models. A loss without an explicit gradient is differentiated by
autograd, as with any other model. Agrees with the other ways up to float32 rounding.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedwcm.core.batch import Outputs
from fedwcm.core.types import ParamSlice, Vec
from fedwcm.engine.fast.ascent import FactoredGradient, LowRankShift, ascend
from fedwcm.engine.fast.products import SMALL, affine, multiply
from fedwcm.engine.forward import DenseModels, Gradient, Point
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


def run_layers(layers: Sequence[LinearLayer], w: Vec, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits of models `w (K, P)` on inputs `(K, b, …)`, and the features, without a tape."""
    value = features = inputs.flatten(start_dim=2)
    for layer in layers:
        features = value
        value = _affine(features, layer.parameters(w))
        if layer.activation is not None:
            value = layer.activation[0](value)
    return value, features


def _in_order(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that a sequence runs in order, with the prefix of their parameter names."""
    if type(module).forward is not nn.Sequential.forward:
        yield name, module
        return
    # Unlike named_children, this yields a module twice if it is used twice.
    for child, inner in module._modules.items():
        if inner is not None:
            yield from _in_order(f"{name}{child}.", inner)


@dataclass(frozen=True, eq=False)
class Tape:
    """The record of a forward pass: each layer's parameters, and the values from the inputs to the logits.

    A loss sees the logits, the features and the head's parameters as independent variables, each a leaf of its own
    graph; the backward pass joins them. `first` is the first layer's output before activation.
    """

    parameters: list[list[Tensor]]
    shifts: Sequence[LowRankShift]
    first: Tensor
    values: list[Tensor]
    head: list[Tensor]

    @property
    def variables(self) -> list[Tensor]:
        return [self.values[-1], self.values[-2], *self.head]


class LinearStack(DenseModels):
    """Many clients at a time, for a model that consists only of linear layers with activations in between."""

    def __init__(self, network: Network) -> None:
        layers = linear_layers(network)
        if layers is None:
            raise ValueError("the model is not a plain stack of linear layers with ReLU, tanh or sigmoid between")
        self.network, self.layers = network, layers
        self._tape: Tape | None = None
        self._seen: tuple[Vec, list[list[Tensor]]] | None = None
        self._held: tuple[Vec, list[list[Tensor]]] | None = None

    def start(self, x: Vec, buffers: Vec) -> None:
        """Drop the state of the last block; such a model has neither buffers nor modes."""
        self._tape = self._seen = self._held = None

    @contextmanager
    def hold(self, w: Vec) -> Iterator[None]:
        """Keep the weights of each layer by themselves, if all are small: products then add the gradients."""
        if any(layer.weight.shape.numel() > SMALL for layer in self.layers):
            yield
            return
        views = [layer.parameters(w) for layer in self.layers]
        held = [[weight.contiguous(), *bias] for weight, *bias in views]
        self._held, self._seen = (w, held), None
        yield
        for (weight, *_), (own, *_) in zip(views, held, strict=True):
            if own is not weight:
                weight.copy_(own)
        self._held = self._seen = None

    def holds(self, w: Vec) -> bool:
        """Return whether the weights of these models, or of a block that begins with them, are held."""
        return self._held is not None and self._held[0].data_ptr() == w.data_ptr()

    def parameters(self, w: Vec) -> list[list[Tensor]]:
        """Return each layer's parameters, views of `w (K, P)` or of what is held of it, cached for the last."""
        if self._seen is None or not (self._seen[0] is w or _same(self._seen[0], w)):
            if self._held is not None and self.holds(w):
                parameters = [[own[: len(w)] for own in layer] for layer in self._held[1]]
            else:
                parameters = [layer.parameters(w.detach()) for layer in self.layers]
            self._seen = w, parameters
        return self._seen[1]

    def __call__(self, w: Vec, inputs: Tensor, track: bool) -> Outputs:
        return self.run(self.parameters(w), inputs.flatten(start_dim=2).detach())

    def run(
        self,
        parameters: list[list[Tensor]],
        inputs: Tensor,
        shifts: Sequence[LowRankShift] = (),
        first: Tensor | None = None,
    ) -> Outputs:
        """Return the outputs of models with these parameters plus the shifts; `first` may be given if known."""
        first = _affine(inputs, parameters[0]) if first is None else first
        values, value = [inputs], first
        for i, layer in enumerate(self.layers):
            if i:
                value = _affine(values[-1], parameters[i], shifts[i : i + 1])
            values.append(value if layer.activation is None else layer.activation[0](value))
        tape = Tape(parameters, shifts, first, values, [own.detach() for own in parameters[-1]])
        self._tape = tape
        if torch.is_grad_enabled():
            for variable in tape.variables:
                variable.requires_grad_()

        def at(x: Vec) -> Outputs:
            with torch.no_grad():
                outputs = self.run(self.parameters(x.expand(len(inputs), -1)), inputs)
            self._tape = tape
            return outputs

        return Outputs(values[-1], values[-2], lambda features: _affine(features, tape.head, shifts[-1:]), at)

    def backward(self, *pairs: tuple[Tensor, Tensor]) -> FactoredGradient:
        tape = self._tape
        assert tape is not None
        gradients: Sequence[Tensor | None] = (*(slope for _, slope in pairs), None)
        if pairs[0][0] is not tape.values[-1]:
            ((values, by_values),) = pairs
            gradients = torch.autograd.grad(values, tape.variables, by_values, allow_unused=True)
        by_logits, by_features, *by_head = gradients
        gradient = torch.zeros_like(tape.values[-1]) if by_logits is None else by_logits
        chain = [gradient]
        with torch.no_grad():
            for i in reversed(range(1, len(self.layers))):
                before = multiply(gradient, tape.parameters[i][0])
                for shift in tape.shifts[i : i + 1]:
                    before += shift.backward(gradient)
                if i == len(self.layers) - 1 and by_features is not None:
                    before += by_features
                activation = self.layers[i - 1].activation
                gradient = before if activation is None else activation[1](before, tape.values[i])
                chain.append(gradient)
        return FactoredGradient(self, tape.values[:-1], chain[::-1], by_head)

    def ascend(self, w: Vec, gradient: Gradient, rho: float) -> Point:
        assert self._tape is not None
        if not isinstance(gradient, FactoredGradient) or any(direct is not None for direct in gradient.by_head):
            return super().ascend(w, gradient, rho)
        return ascend(gradient, self._tape, rho)

    def buffers(self) -> Tensor:
        raise AssertionError("a stack of linear layers has no buffers")


def _affine(inputs: Tensor, parameters: list[Tensor], shifts: Sequence[LowRankShift] = ()) -> Tensor:
    weight, *bias = parameters
    output = affine(inputs, weight, bias[0] if bias else None)
    for shift in shifts:
        output = output + shift.forward(inputs)
    return output


def _same(one: Vec, other: Vec) -> bool:
    """Return whether two tensors share memory; `one` is kept alive, so that its address cannot be reused."""
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.stride() == other.stride()
