"""The gradient of a block of models: a dense vector, or a form that is cheaper to add to the models."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedwcm.core.types import Vec


class Gradient(Protocol):
    """A gradient that is not necessarily stored as a dense vector."""

    def vector(self) -> Vec:
        """Return the gradient as a vector `(K, P)` that the caller may modify."""
        ...

    def add_to(self, w: Vec) -> None:
        """Add the gradient to these vectors, in place."""
        ...


@dataclass(frozen=True, eq=False)
class DenseGradient:
    """A gradient stored as a dense vector."""

    gradient: Tensor

    def vector(self) -> Vec:
        return self.gradient

    def add_to(self, w: Vec) -> None:
        w.add_(self.gradient)
