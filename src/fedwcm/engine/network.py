"""A module as a function of one flat vector of parameters.

Trainable parameters are one flat vector `(P,)`; floating-point buffers (BatchNorm statistics) are a second
one. Integer buffers are counters that no average makes sense of, and stay out of both.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.dropout import _DropoutNd

from fedwcm.core.types import State, Vec


@dataclass(frozen=True)
class ParamSlice:
    """Where one tensor of the module stands in the flat vector.

    The weights of a convolution stand there with the input channels last, which is how a CPU wants them: so
    neither they nor their gradients are ever rearranged.
    """

    name: str
    start: int
    shape: torch.Size

    @property
    def stop(self) -> int:
        return self.start + self.shape.numel()

    def of(self, w: Vec) -> Tensor:
        """This tensor of flat vectors `(..., P)`, as a view of shape `(..., *shape)`."""
        piece = w[..., self.start : self.stop]
        if len(self.shape) != 4:
            return piece.view(*w.shape[:-1], *self.shape)
        out, into, height, width = self.shape
        return piece.view(*w.shape[:-1], out, height, width, into).movedim(-1, -3)

    def flat(self, tensor: Tensor) -> Vec:
        """The tensor in the order in which it stands in the flat vector."""
        return (tensor.movedim(1, -1) if len(self.shape) == 4 else tensor).reshape(-1)


class Network:
    """The layout of a module's flat parameters, and the way between the two.

    `head` is the module's final linear layer, found as its attribute `head` or else as the last `nn.Linear`:
    objectives that work on features, and methods that treat the classifier apart, need it.
    """

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu") -> None:
        self.module = module.to(device)
        self.parameters = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        self.buffers = [(n, b) for n, b in module.named_buffers() if b.is_floating_point()]
        if not self.parameters:
            raise ValueError(f"the model {type(module).__name__} has no trainable parameters")
        self.slots = _layout(self.parameters)
        self.buffer_slots = _layout(self.buffers)
        self.size = self.slots[-1].stop
        self.head_name, self.head = _find_head(module)
        self.stochastic = any(isinstance(m, _DropoutNd) for m in module.modules())
        self._pointed: Vec | None = None
        self._head_input: Tensor | None = None
        if self.head is not None:
            self.head.register_forward_pre_hook(self._capture)

    def __call__(self, inputs: Tensor, parameters: State | None = None) -> tuple[Tensor, Tensor]:
        """Logits and features of one model on one batch, with its own parameters or with these."""
        self._head_input = None
        if parameters is not None:
            logits = functional_call(self.module, parameters, (inputs,))
        elif inputs.dim() == 4:  # a CPU convolves up to 1.5 times faster with the channels last in memory
            logits = self.module(inputs.contiguous(memory_format=torch.channels_last))
        else:
            logits = self.module(inputs)
        features, self._head_input = self._head_input, None
        return logits, logits.new_zeros(0) if features is None else features

    def _capture(self, _: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        self._head_input = arguments[0]

    @property
    def device(self) -> torch.device:
        return self.parameters[0][1].device

    @property
    def head_slots(self) -> list[ParamSlice]:
        """The slots of the final linear layer: weight, and bias if it has one."""
        if self.head is None:
            return []
        return [slot for slot in self.slots if slot.name.rpartition(".")[0] == self.head_name]

    def initial(self) -> tuple[Vec, Vec]:
        """Copies of the module's present parameters and buffers, flat."""
        return self.flatten([p for _, p in self.parameters]), _joined(
            self.buffer_slots, [b for _, b in self.buffers]
        )

    def flatten(self, tensors: Sequence[Tensor]) -> Vec:
        """The flat vector of tensors that are given in the order of the parameters."""
        return _joined(self.slots, tensors)

    def unflatten(self, w: Vec) -> State:
        """The named parameters of flat vectors `(..., P)`, as views of shape `(..., *shape)`."""
        return {slot.name: slot.of(w) for slot in self.slots}

    def point_parameters(self, w: Vec) -> None:
        """Let the module's parameters be views of `w`: nothing is copied, changes in place show at once."""
        if self._pointed is not None and self._pointed.data_ptr() == w.data_ptr():
            return
        self._pointed = w  # kept alive, so that an equal address means the same vector
        for slot, (_, parameter) in zip(self.slots, self.parameters, strict=True):
            parameter.data = slot.of(w)

    def point_buffers(self, buffers: Vec) -> None:
        """Let the module's floating-point buffers be views of this vector."""
        for slot, (_, buffer) in zip(self.buffer_slots, self.buffers, strict=True):
            buffer.data = slot.of(buffers)

    def state_dict(self, x: Vec, buffers: Vec) -> State:
        """The module's state with these parameters and buffers, for saving."""
        self.point_parameters(x)
        self.point_buffers(buffers)
        return {name: value.detach().clone() for name, value in self.module.state_dict().items()}


def _joined(slots: list[ParamSlice], tensors: Sequence[Tensor]) -> Vec:
    pieces = [slot.flat(tensor.detach()) for slot, tensor in zip(slots, tensors, strict=True)]
    return torch.cat(pieces) if pieces else torch.zeros(0)


def _layout(tensors: "list[tuple[str, nn.Parameter]] | list[tuple[str, Tensor]]") -> list[ParamSlice]:
    slots: list[ParamSlice] = []
    for name, tensor in tensors:
        slots.append(ParamSlice(name, slots[-1].stop if slots else 0, tensor.shape))
    return slots


def _find_head(module: nn.Module) -> tuple[str, nn.Linear | None]:
    linears = [(name, m) for name, m in module.named_modules() if isinstance(m, nn.Linear)]
    named = [(name, m) for name, m in linears if name == "head"]
    found = named or linears
    return found[-1] if found else ("", None)
