"""Directions that are linear in the gradient, and the step along one with everything multiplied out.

Most methods only scale the gradient, add a vector that stays the same over a round, and pull the model towards
somewhere. Whoever knows that beforehand can add the gradient straight to the models, without a vector to hold it.
"""

from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor


class Gradient(Protocol):
    """A gradient on its way: as a vector of its own, or added to the models at once."""

    def vector(self) -> Tensor:
        """The gradient `(K, P)`, which belongs to whoever asked."""
        ...

    def add_to(self, w: Tensor) -> None:
        """Add the gradient to these vectors, in place."""
        ...


@dataclass(frozen=True, eq=False)
class Blend:
    """The direction `scale·g + shift + pull·w`; `shift` is `(P,)` or `(K, P)`, `pull` is `(K, 1)`."""

    scale: float = 1.0
    shift: Tensor | None = None
    pull: Tensor | None = None

    def of(self, g: Tensor, w: Tensor) -> Tensor:
        """The direction at `w`, in the place of the gradient."""
        if self.shift is not None:
            torch.add(self.shift, g, alpha=self.scale, out=g)
        elif self.scale != 1.0:
            g.mul_(self.scale)
        return g if self.pull is None else g.addcmul_(w, self.pull)

    def first(self, k: int) -> "Blend":
        """The blend of the first k clients of the block."""
        return Blend(self.scale, _first(self.shift, k), _first(self.pull, k))


@dataclass(frozen=True, eq=False)
class Move:
    """The step `w ← keep·w + offset + rate·g` of a block of clients; `rate` is `(K, 1)`, and negative."""

    rate: Tensor
    keep: Tensor | None
    offset: Tensor | None

    @classmethod
    def along(cls, blend: Blend, lr: Tensor, decay: float) -> Self:
        """The step along a blend, at learning rates `(K, 1)` and with so much weight decay."""
        pull = decay if blend.pull is None else blend.pull + decay
        still = blend.pull is None and not decay
        # One vector for all where shift and rate are the same for all: it stays in the cache.
        shared = lr[:1] if bool((lr == lr[0]).all()) else lr
        offset = None if blend.shift is None else blend.shift * -shared
        return cls(-lr * blend.scale, None if still else 1.0 - lr * pull, offset)

    def first(self, k: int) -> "Move":
        """The step of the first k clients of the block."""
        if k == len(self.rate):
            return self
        return Move(self.rate[:k], _first(self.keep, k), _first(self.offset, k))

    def __call__(self, w: Tensor, slopes: Gradient) -> None:
        """Move the models in place, given their gradient times `rate`."""
        if self.offset is not None and self.keep is not None:
            torch.addcmul(self.offset, w, self.keep, out=w)
        elif self.offset is not None:
            w.add_(self.offset)
        elif self.keep is not None:
            w.mul_(self.keep)
        slopes.add_to(w)


def _first(rows: Tensor | None, k: int) -> Tensor | None:
    """The first k rows, where there is one for each client."""
    return rows if rows is None or rows.dim() == 1 else rows[:k]
