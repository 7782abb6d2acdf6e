"""Directions that are affine in the gradient and the model, and the fused step along them.

Most methods only scale the gradient, add a vector that is constant during a round, and pull the model towards a
point. If this is known in advance, the gradient can be added directly to the models without being stored.
"""

from dataclasses import dataclass, field
from typing import Self, TypeAlias

from torch import Tensor

from fedwcm.core.types import Vec
from fedwcm.engine.forward import Gradient
from fedwcm.engine.oracle import GradientPoint

Coefficient: TypeAlias = float | Tensor
"""A number, or one per client `(K, 1)`."""

Term: TypeAlias = tuple[Coefficient, Vec]
"""A coefficient times a vector `(P,)` or `(K, P)`."""


@dataclass(frozen=True, eq=False)
class AffineDirection:
    """The direction `scale·g + pull·w + Σ coefficient·vector`, with g the gradient at a point relative to w."""

    scale: Coefficient = 1.0
    pull: Coefficient = 0.0
    terms: tuple[Term, ...] = ()
    point: GradientPoint = field(default_factory=GradientPoint)

    def shift(self, factor: Coefficient = 1.0) -> Vec | None:
        """Return factor · Σ coefficient·vector; None without terms."""
        total: Vec | None = None
        # The largest term first, so that the others can be added in place.
        for coefficient, vector in sorted(self.terms, key=lambda term: -term[1].dim()):
            by = factor * coefficient
            if total is None:
                total = vector * by
            elif isinstance(by, Tensor):
                total = total + vector * by
            else:
                total.add_(vector, alpha=by)
        return total


@dataclass(frozen=True, eq=False)
class BlockDirection:
    """An affine direction with its terms summed, for clipping: `scale·g + shift + pull·w`."""

    scale: Coefficient
    shift: Vec | None
    pull: Coefficient

    @classmethod
    def of(cls, direction: AffineDirection) -> Self:
        return cls(direction.scale, direction.shift(), direction.pull)

    def __call__(self, g: Vec, w: Vec) -> Vec:
        """Return the direction of the first clients of the block, overwriting the gradient `g`."""
        k = len(w)
        if isinstance(self.scale, Tensor) or self.scale != 1.0:
            g.mul_(first_rows(self.scale, k))
        if self.shift is not None:
            g.add_(first_rows(self.shift, k))
        if isinstance(self.pull, Tensor):
            g.addcmul_(w, first_rows(self.pull, k))
        elif self.pull:
            g.add_(w, alpha=self.pull)
        return g


@dataclass(frozen=True, eq=False)
class AffineStep:
    """The step `w ← keep·w + offset + rate·g` of a block of clients; `rate` is `(K, 1)`, and negative."""

    rate: Tensor
    keep: Tensor | None
    offset: Tensor | None

    @classmethod
    def along(cls, direction: AffineDirection, lr: Tensor, common_lr: float | None, decay: float) -> Self:
        """Return the step along a direction, at learning rates `(K, 1)` and with this weight decay.

        If terms and rates are the same for all clients, one vector serves all and stays in the cache. `common_lr`
        is that rate: to read it from `lr`, a device would have to finish its work first.
        """
        offset = direction.shift(-lr if common_lr is None else -common_lr)
        pull = direction.pull + decay
        no_pull = not isinstance(pull, Tensor) and not pull
        return cls(-lr * direction.scale, None if no_pull else 1.0 - lr * pull, offset)

    def first(self, k: int) -> "AffineStep":
        """Return the step of the first k clients of the block."""
        if k == len(self.rate):
            return self
        keep = None if self.keep is None else self.keep[:k]
        return AffineStep(self.rate[:k], keep, None if self.offset is None else first_rows(self.offset, k))

    def __call__(self, w: Vec, gradient: Gradient) -> None:
        """Update the models in place, given their gradient times `rate`."""
        gradient.add_to(w, self.keep, self.offset)


def first_rows(value: Coefficient, k: int) -> Tensor:
    """Return the first k rows of a value with one row per client, or else the value itself."""
    return value if not isinstance(value, Tensor) or value.dim() < 2 else value[:k]  # type: ignore[return-value]
