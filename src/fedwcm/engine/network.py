"""A module as a function of one flat vector of parameters.

Trainable parameters are one flat vector `(P,)`; floating-point buffers (BatchNorm statistics) are a second
one. Integer buffers are counters that no average makes sense of, and stay out of both.
"""

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.dropout import _DropoutNd

from fedwcm.core.layout import Layout
from fedwcm.core.types import State, Vec
from fedwcm.models.pointwise import subsample_strided_pointwise


class Network:
    """A module, the layout of its flat parameters, and the way between the two.

    `head` is the module's final linear layer, found as its attribute `head` or else as the last `nn.Linear`:
    losses that work on features, and methods that treat the classifier apart, need it.
    """

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu") -> None:
        self.module = module.to(device)
        if torch.device(device).type == "cpu":
            subsample_strided_pointwise(module)
        self.parameters = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        self.buffers = [(n, b) for n, b in module.named_buffers() if b.is_floating_point()]
        if not self.parameters:
            raise ValueError(f"the model {type(module).__name__} has no trainable parameters")
        head_name, self.head = _find_head(module)
        self.layout = Layout.of(self.parameters, head_name)
        self.buffer_layout = Layout.of(self.buffers)
        self.size = self.layout.size
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

    def initial(self) -> tuple[Vec, Vec]:
        """Return copies of the module's present parameters and buffers, flat."""
        parameters = self.layout.flatten([p for _, p in self.parameters])
        return parameters, self.buffer_layout.flatten([b for _, b in self.buffers])

    def point_parameters(self, w: Vec) -> None:
        """Let the module's parameters be views of `w`: nothing is copied, changes in place show at once."""
        if self._pointed is not None and self._pointed.data_ptr() == w.data_ptr():
            return
        self._pointed = w  # kept alive, so that an equal address means the same vector
        for part, (_, parameter) in zip(self.layout.slices, self.parameters, strict=True):
            parameter.data = part.of(w)

    def point_buffers(self, buffers: Vec) -> None:
        """Let the module's floating-point buffers be views of this vector."""
        for part, (_, buffer) in zip(self.buffer_layout.slices, self.buffers, strict=True):
            buffer.data = part.of(buffers)

    def state_dict(self, x: Vec, buffers: Vec) -> State:
        """The module's state with these parameters and buffers, for saving."""
        self.point_parameters(x)
        self.point_buffers(buffers)
        return {name: value.detach().clone() for name, value in self.module.state_dict().items()}


def _find_head(module: nn.Module) -> tuple[str | None, nn.Linear | None]:
    linears = [(name, m) for name, m in module.named_modules() if isinstance(m, nn.Linear)]
    named = [(name, m) for name, m in linears if name == "head"]
    found = named or linears
    return found[-1] if found else (None, None)
