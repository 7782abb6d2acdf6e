"""Two ways to run a block of models: one ordinary module at a time, or all of them stacked.

Both give outputs that can be differentiated with respect to the local models `w (K, P)`, and agree up to float32
rounding. One module at a time has the least overhead per operation; stacking is faster for models so small that
the overhead of each operation dominates.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedwcm.core.batch import Outputs
from fedwcm.core.perturbation import perturbation_scale
from fedwcm.core.types import State, Vec
from fedwcm.engine.hook_checks import ComponentError
from fedwcm.engine.network import Network
from fedwcm.engine.precision import Pairs

if TYPE_CHECKING:
    from fedwcm.engine.fast.ascent import AscendedModels

Point: TypeAlias = "Tensor | AscendedModels"
"""Where a gradient is taken: dense models `(K, P)`, or ascended models in factored form."""


class Gradient(Protocol):
    """A gradient that is not necessarily stored as a dense vector."""

    def vector(self) -> Vec:
        """Return the gradient as a vector `(K, P)` that the caller may modify."""
        ...

    def add_to(self, w: Vec, keep: Tensor | None = None, offset: Vec | None = None) -> None:
        """Update these vectors in place: `w ← keep·w + offset + gradient`, with a factor `keep (K, 1)`."""
        ...


def shift(w: Vec, keep: Tensor | None, offset: Vec | None) -> None:
    """Update these vectors in place: `w ← keep·w + offset`."""
    if offset is not None and keep is not None:
        torch.addcmul(offset, w, keep, out=w)
    elif offset is not None:
        w.add_(offset)
    elif keep is not None:
        w.mul_(keep)


@dataclass(frozen=True, eq=False)
class DenseGradient:
    """A gradient stored as a dense vector."""

    gradient: Tensor

    def vector(self) -> Vec:
        return self.gradient

    def add_to(self, w: Vec, keep: Tensor | None = None, offset: Vec | None = None) -> None:
        shift(w, keep, offset)
        w.add_(self.gradient)


class Forward(Protocol):
    """Runs the models `w (K, P)` on inputs `(K, b, …)`, and differentiates what was computed from them."""

    network: Network

    def start(self, x: Vec, buffers: Vec) -> None:
        """Start a new block of clients, all from this model and these buffers; drop the last block's state."""
        ...

    def __call__(self, w: Vec, inputs: Tensor, track: bool) -> Outputs:
        """Return the models' outputs on the inputs; `track` says whether this batch updates the buffers."""
        ...

    def backward(self, *pairs: tuple[Tensor, Tensor]) -> Gradient:
        """Return the gradient with respect to the `w` of the last call, given gradients by values.

        Each pair is a value and the gradient with respect to it: either one value computed from the last outputs,
        such as the clients' losses `(K,)`, or the logits themselves and, if need be, the features.
        """
        ...

    def ascend(self, w: Vec, gradient: Gradient, rho: float) -> Point:
        """Return the models `w` moved by rho up the gradient that `backward` returned after the last call."""
        ...

    def hold(self, w: Vec) -> AbstractContextManager[None]:
        """Keep the models `w` in a faster form until the block ends; only `Gradient.add_to` may change them."""
        ...

    def buffers(self) -> Tensor:
        """Return the clients' current buffers, `(K, B)`."""
        ...


class DenseModels:
    """Models that are held as they come, and ascended to dense ones."""

    def hold(self, w: Vec) -> AbstractContextManager[None]:
        return nullcontext()

    def ascend(self, w: Vec, gradient: Gradient, rho: float) -> Point:
        g = gradient.vector()
        return torch.addcmul(w, g, perturbation_scale(g, rho), out=g)


class SequentialForward(DenseModels):
    """One client at a time: an ordinary module whose parameters are views of the flat vector."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._buffers = self._received = self._lent = torch.zeros(0)

    def start(self, x: Vec, buffers: Vec) -> None:
        self.network.set_training_mode()
        self.network.point_parameters(x)
        self._received, self._lent = x, x[:0]
        self.network.reset_fixed_buffers()
        self._buffers = buffers.clone()
        self.network.point_buffers(self._buffers)

    def __call__(self, w: Vec, inputs: Tensor, track: bool) -> Outputs:
        own = self._own(w[0])
        self.network.point_parameters(own)
        saved = None if track or not len(self._buffers) else (self._buffers.clone(), self.network.fixed_buffers())
        logits, features = self.network.train_outputs(inputs[0])
        if saved is not None:
            self._buffers.copy_(saved[0])
            self.network.reset_fixed_buffers(saved[1])

        def at(x: Vec) -> Outputs:
            with torch.no_grad():
                outputs = self(x.view(1, -1), inputs, track=False)
            # Restore immediately: the graph of the current model is differentiated through these parameters.
            self.network.point_parameters(own)
            return outputs

        return Outputs(logits[None], features[None], lambda other: self.network.apply_head(other[0])[None], at)

    def _own(self, w: Vec) -> Vec:
        """Return these parameters; of the received model a copy, since a layer may write to its weights.

        `nn.Embedding(max_norm=…)` does. What was received is the server's, and that of the next client.
        """
        if w.data_ptr() != self._received.data_ptr():
            return w
        if not len(self._lent):
            self._lent = w.clone()
        return self._lent

    def backward(self, *pairs: tuple[Tensor, Tensor]) -> Gradient:
        parameters = [p for _, p in self.network.parameters]
        flatten, precision = self.network.layout.flatten, self.network.precision
        return DenseGradient(
            precision.differentiate(pairs, lambda each: flatten(gradients(each, parameters))[None])
        )

    def buffers(self) -> Tensor:
        return self._buffers.clone()[None]


class VmapForward(DenseModels):
    """Many clients at a time: one forward pass in which every weight has a client axis."""

    def __init__(self, network: Network) -> None:
        if network.buffers:
            names = ", ".join(name for name, _ in network.buffers[:2])
            raise ValueError(f"clients cannot be stacked with a model that has buffers ({names}, …)")
        if network.stochastic:
            raise ValueError("clients cannot be stacked with a model that has dropout: its draws are per client")
        if network.has_gradient_hooks:
            raise ValueError("clients cannot be stacked with a model whose parameters have gradient hooks")
        self.network = network
        self._has_plain_head = type(network.head) is nn.Linear and not network.has_hooks
        self._run = torch.vmap(lambda parameters, inputs: network.train_outputs(inputs, parameters))
        self._leaf: Vec | None = None

    def start(self, x: Vec, buffers: Vec) -> None:
        self.network.set_training_mode()
        self._leaf = None

    def __call__(self, w: Vec, inputs: Tensor, track: bool) -> Outputs:
        self._leaf = w.detach().requires_grad_(torch.is_grad_enabled())
        parameters = self.network.layout.unflatten(self._leaf)
        logits, features = self.network.lend(inputs, lambda lent: self._run(parameters, lent))

        def at(x: Vec) -> Outputs:
            leaf = self._leaf
            with torch.no_grad():
                outputs = self(x.expand(len(inputs), -1), inputs, track=False)
            self._leaf = leaf
            return outputs

        return Outputs(logits, features, lambda other: self._head(parameters, other), at)

    def _head(self, parameters: State, features: Tensor) -> Tensor:
        with self.network.precision.autocast(features.device):
            return self.network.precision.restore(self._apply_head(parameters, features))

    def _apply_head(self, parameters: State, features: Tensor) -> Tensor:
        head = self.network.head
        assert head is not None
        if not self._has_plain_head:
            own = {part.name.rpartition(".")[2]: parameters[part.name] for part in self.network.layout.head_slices}
            logits: Tensor = torch.vmap(lambda p, f: functional_call(head, p, (f,)))(own, features)
            return logits
        weight, *bias = (parameters[part.name] for part in self.network.layout.head_slices)
        logits = features @ weight.transpose(-1, -2)
        return logits + bias[0][:, None] if bias else logits

    def backward(self, *pairs: tuple[Tensor, Tensor]) -> Gradient:
        assert self._leaf is not None
        leaf = self._leaf
        return DenseGradient(self.network.precision.differentiate(pairs, lambda each: gradients(each, [leaf])[0]))

    def buffers(self) -> Tensor:
        raise AssertionError("stacked clients have no buffers")


def gradients(pairs: Pairs, of: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the gradients of these tensors, given pairs of a value and the gradient with respect to it.

    A value that depends on no parameter, such as features that are the inputs, contributes nothing.
    """
    with_gradient = [pair for pair in pairs if pair[0].requires_grad]
    if not with_gradient:
        raise ComponentError(
            "the model's outputs have no gradient: a forward pass that trains does without no_grad() and detach()"
        )
    values, by_values = zip(*with_gradient, strict=True)
    return torch.autograd.grad(values, of, by_values, materialize_grads=True)
