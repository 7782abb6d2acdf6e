"""The layout of a model's tensors in its flat parameter vector."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ParamSlice:
    """The place of one tensor of a module in the flat vector.

    Convolution weights are stored with the input channels last. This is the order that CPU kernels use, so that
    neither the weights nor their gradients are ever rearranged.
    """

    name: str
    start: int
    shape: torch.Size

    @property
    def stop(self) -> int:
        return self.start + self.shape.numel()

    def of(self, w: Tensor) -> Tensor:
        """Return this tensor of flat vectors `(..., P)`, as a view of shape `(..., *shape)`."""
        piece = w[..., self.start : self.stop]
        if len(self.shape) != 4:
            return piece.view((*w.shape[:-1], *self.shape))  # one argument: there may be no sides at all
        out, into, height, width = self.shape
        return piece.view(*w.shape[:-1], out, height, width, into).movedim(-1, -3)

    def flat(self, tensor: Tensor) -> Tensor:
        """Return the tensor flattened in the order of the flat vector."""
        return (tensor.movedim(1, -1) if len(self.shape) == 4 else tensor).reshape(-1)


@dataclass(frozen=True)
class Layout:
    """The slices of a flat vector, and which of them belong to the head, the final linear layer.

    Args:
        slices: one slice per tensor, in order.
        head: name of the module that is the head (empty if it is the whole model); None if there is none.
    """

    slices: tuple[ParamSlice, ...]
    head: str | None = None

    @classmethod
    def of(cls, tensors: Sequence[tuple[str, Tensor]], head: str | None = None) -> "Layout":
        """Lay out named tensors one after the other."""
        slices: list[ParamSlice] = []
        for name, tensor in tensors:
            slices.append(ParamSlice(name, slices[-1].stop if slices else 0, tensor.shape))
        return cls(tuple(slices), head)

    @property
    def size(self) -> int:
        """The length of the flat vector, P."""
        return self.slices[-1].stop if self.slices else 0

    @property
    def head_slices(self) -> list[ParamSlice]:
        """The slices of the head: its weight, and its bias if it has one."""
        return [part for part in self.slices if part.name.rpartition(".")[0] == self.head]

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the flat vector of the tensors, given in the order of the slices."""
        pieces = [part.flat(tensor.detach()) for part, tensor in zip(self.slices, tensors, strict=True)]
        return torch.cat(pieces) if pieces else torch.zeros(0)

    def unflatten(self, w: Tensor) -> dict[str, Tensor]:
        """Return the named tensors of flat vectors `(..., P)`, as views of shape `(..., *shape)`."""
        return {part.name: part.of(w) for part in self.slices}
