"""A module as a function of one flat vector of parameters.

Trainable parameters are one flat vector `(P,)`; floating-point buffers (BatchNorm statistics) are a second
one. Two kinds of buffers are in neither, and every client starts with those of the new model in every round:
integers, which are counters and cannot be averaged, and what is not saved with the model (`persistent=False`),
such as a table of positions.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.hooks import RemovableHandle

from fedwcm.core.loss import LogitScale
from fedwcm.core.types import Layout, State, Vec
from fedwcm.engine.hook_checks import ComponentError
from fedwcm.engine.precision import Precision
from fedwcm.models.convolutions import subsample_strided_pointwise
from fedwcm.models.predictor import find_head

T = TypeVar("T")

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
"""Layers that normalise. Those with running statistics (`_NormBase`) are BatchNorm and InstanceNorm."""


class Network:
    """A module, the layout of its flat parameters, and the conversion between the two.

    `head` is the module's final linear layer: its attribute `head`, or else the last `nn.Linear` with as many
    outputs as there are classes; if their number is not given, the last of all. Losses that work on features, and
    methods that treat the classifier separately, need it. `logit_scale` is that of the loss.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device | str = "cpu",
        precision: Precision | None = None,
        classes: int | None = None,
        logit_scale: LogitScale | None = None,
    ) -> None:
        self.module = module.to(device)
        self.logit_scale = logit_scale or LogitScale()
        self.precision = precision or Precision()
        if torch.device(device).type == "cpu":
            subsample_strided_pointwise(module)
        self.parameters = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        saved = module.state_dict().keys()
        travels = {n: b.is_floating_point() and n in saved for n, b in module.named_buffers()}
        self.buffers = [(n, b) for n, b in module.named_buffers() if travels[n]]
        self._fixed = [(b, b.clone()) for n, b in module.named_buffers() if not travels[n]]
        if not self.parameters:
            raise ValueError(f"the model {type(module).__name__} has no trainable parameters")
        _require_one_type("parameters", self.parameters)
        _require_one_type("buffers", self.buffers)
        self.buffer_layout = Layout.of(self.buffers)
        self._in_evaluation_mode = [m for m in module.modules() if not m.training] if module.training else []
        self._in_evaluation_mode += [m for m in module.modules() if is_idle_dropout(m)]
        self.stochastic = any(isinstance(m, _DropoutNd) and not is_idle_dropout(m) for m in module.modules())
        self._writes_input: dict[bool, bool] = {}
        self._pointed: Vec | None = None
        self._head_input: Tensor | None = None
        self._hook: RemovableHandle | None = None
        self.choose_head(classes)
        self.size = self.layout.size

    def choose_head(self, classes: int | None) -> None:
        """Find the final linear layer, given the number of classes or, if it is not known yet, without it."""
        if self._hook is not None:
            self._hook.remove()
        name, self.head = find_head(self.module, classes)
        norms = frozenset(name for name, part in self.module.named_modules() if isinstance(part, NORMS))
        self.layout = Layout.of(self.parameters, name, norms)
        self._hook = None if self.head is None else self.head.register_forward_pre_hook(self._capture)

    @property
    def has_hooks(self) -> bool:
        """Whether calling a module does more than its class says, or a parameter's gradient is changed."""
        return self.has_gradient_hooks or any(map(_does_more_than_its_class, self.module.modules()))

    @property
    def has_gradient_hooks(self) -> bool:
        """Whether a parameter's gradient is changed or watched."""
        return any(parameter._backward_hooks for _, parameter in self.parameters)

    def set_training_mode(self) -> None:
        """Put the module into training mode, but for the parts that were in evaluation mode when it was given."""
        self.module.train()
        for module in self._in_evaluation_mode:
            module.training = False

    def __call__(self, inputs: Tensor, parameters: State | None = None) -> tuple[Tensor, Tensor]:
        """Return the logits and features on one batch, with the module's own parameters or with these."""
        self._head_input = None
        if parameters is not None:
            logits = functional_call(self.module, parameters, (inputs,))
        else:
            if inputs.dim() == 4:  # CPU convolutions are up to 1.5 times faster with channels last in memory
                inputs = inputs.contiguous(memory_format=torch.channels_last)
            logits = self.lend(inputs, self.module)
        logits = getattr(logits, "logits", logits)  # of a Flower app's model, which nobody has tried
        features, self._head_input = self._head_input, None
        return logits, logits.new_zeros(0) if features is None else features

    def lend(self, inputs: Tensor, run: Callable[[Tensor], T]) -> T:
        """Return what the module makes of these inputs, which stay as they are even if it works in place.

        The first call in each mode is on a copy, which tells whether the module writes to its input; if it does,
        so are all others.
        """
        mode = self.module.training
        writes = self._writes_input.get(mode)
        lent = inputs if writes is False else inputs.clone()
        version = lent._version
        result = run(lent)
        changed = lent._version != version
        if writes is None:
            # A write behind autograd's back (x.data) has no version. A device would have to finish its work first.
            self._writes_input[mode] = changed or (inputs.device.type == "cpu" and not torch.equal(lent, inputs))
        elif changed and not writes:
            raise ComponentError(
                f"the model {type(self.module).__name__} changes its input in place, but not at every call: "
                "let its forward begin with a copy (x = x.clone())"
            )
        return result

    def predict(self, inputs: Tensor) -> Tensor:
        """Return the logits on the scale of the loss, whose softmax are the probabilities of the classes."""
        return self.logit_scale(*self(inputs))

    def train_outputs(self, inputs: Tensor, parameters: State | None = None) -> tuple[Tensor, Tensor]:
        """Return the same, computed in the precision of local training."""
        with self.precision.autocast(inputs.device):
            logits, features = self(inputs, parameters)
        return self.precision.restore(logits), self.precision.restore(features)

    def apply_head(self, features: Tensor) -> Tensor:
        """Return the head's logits for these features, computed in the precision of local training."""
        assert self.head is not None
        with self.precision.autocast(features.device):
            logits: Tensor = self.head(features)
        return self.precision.restore(logits)

    def _capture(self, _: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        self._head_input = arguments[0]

    @property
    def device(self) -> torch.device:
        return self.parameters[0][1].device

    def initial(self) -> tuple[Vec, Vec]:
        """Return flat copies of the module's current parameters and buffers."""
        parameters = self.layout.flatten([p for _, p in self.parameters])
        return parameters, self.buffer_layout.flatten([b for _, b in self.buffers])

    def point_parameters(self, w: Vec) -> None:
        """Make the module's parameters views of `w`, without copying: in-place changes of `w` take effect."""
        if self._pointed is not None and self._pointed.data_ptr() == w.data_ptr():
            return
        self._pointed = w  # kept alive, so that the same address means the same vector
        for part, (_, parameter) in zip(self.layout.slices, self.parameters, strict=True):
            parameter.data = part.of(w)

    def point_buffers(self, buffers: Vec) -> None:
        """Make the module's floating-point buffers views of this vector."""
        for part, (_, buffer) in zip(self.buffer_layout.slices, self.buffers, strict=True):
            buffer.data = part.of(buffers)

    def fixed_buffers(self) -> list[Tensor]:
        """Return copies of the buffers that do not travel."""
        return [buffer.clone() for buffer, _ in self._fixed]

    def reset_fixed_buffers(self, values: list[Tensor] | None = None) -> None:
        """Set the buffers that do not travel to these values, or to those of the new model."""
        for i, (buffer, initial) in enumerate(self._fixed):
            buffer.copy_(initial if values is None else values[i])

    def state_dict(self, x: Vec, buffers: Vec) -> State:
        """Return the module's state dict with these parameters and buffers, for saving."""
        self.reset_fixed_buffers()
        self.point_parameters(x)
        self.point_buffers(buffers)
        return {name: value.detach().clone() for name, value in self.module.state_dict().items()}


def _require_one_type(kind: str, tensors: Sequence[tuple[str, Tensor]]) -> None:
    """Raise unless these can be one flat vector."""
    first = {tensor.dtype: name for name, tensor in reversed(tensors)}
    if len(first) > 1:
        examples = ", ".join(f"{name!r} is {dtype}" for dtype, name in first.items())
        raise ValueError(
            f"the model's {kind} have several types ({examples}): allowed is one for all; convert the model with "
            "model.float()"
        )


def is_idle_dropout(module: nn.Module) -> bool:
    """Return whether this is a dropout layer of torch that never drops anything."""
    return isinstance(module, _DropoutNd) and type(module).__module__ == _DropoutNd.__module__ and module.p == 0


def _does_more_than_its_class(module: nn.Module) -> bool:
    """Return whether calling the module runs hooks, but for that of a `Network`, or a `forward` of its own."""
    before = [
        h for h in module._forward_pre_hooks.values() if getattr(h, "__func__", None) is not Network._capture
    ]
    hooks = before or module._forward_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(hooks) or "forward" in vars(module)
