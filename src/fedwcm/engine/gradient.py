"""A gradient of a block of models: as a dense vector, or in a form that is cheaper to add to them."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedwcm.core.types import Vec


class Gradient(Protocol):
    """A gradient that may not have been written out yet."""

    def vector(self) -> Vec:
        """Return the gradient as a vector `(K, P)`, which belongs to the caller."""
        ...

    def add_to(self, w: Vec) -> None:
        """Add the gradient to these vectors, in place."""
        ...


@dataclass(frozen=True, eq=False)
class DenseGradient:
    """A gradient that is a vector already."""

    gradient: Tensor

    def vector(self) -> Vec:
        return self.gradient

    def add_to(self, w: Vec) -> None:
        w.add_(self.gradient)
