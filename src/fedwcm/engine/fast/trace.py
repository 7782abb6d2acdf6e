"""Symbolic tracing, once per round: is a method's direction affine in the gradient and the model?

`Method.direction` is called with symbols instead of the models and the oracle. Symbols can be added, subtracted
and scaled, and the oracle can be called once. If nothing else is done with them and the client state does not
change, the result is `scale·g + pull·w + Σ coefficient·vector`, valid for every step of the round, and the engine
takes the fused path. Otherwise, `direction` is called at every step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedwcm.core.method import Method
from fedwcm.core.torch_rng import own_torch_generator
from fedwcm.core.types import Context, State, Vec
from fedwcm.engine.fast.affine_step import AffineDirection, Coefficient, Term
from fedwcm.engine.hook_checks import check_tuple
from fedwcm.engine.oracle import GradientPoint


class NotAffineError(Exception):
    """An operation on a symbol that is not affine."""


def trace_direction(method: Method, c: State, ctx: Context) -> AffineDirection | None:
    """Return the direction of all steps of this round, or None if it must be computed at every step."""
    shape = (len(ctx.clients), len(ctx.x))
    points: list[GradientPoint] = []
    w: Any = Symbol(shape, ctx.x, model=1.0)
    cuda = [ctx.x.device] if ctx.x.is_cuda else []
    with own_torch_generator(cuda):  # numbers that are drawn here are drawn again, at every step
        before = _generator_states(cuda)
        try:
            direction = method.direction(w, SymbolicOracle(points), c, ctx)
        except Exception:
            # Not affine, or an error in the method, which the first real step will raise.
            return None
        if not all(map(torch.equal, before, _generator_states(cuda))):
            return None
    v, after = check_tuple(method.direction, direction, "direction", "client state")
    unchanged = after.keys() == c.keys() and all(after[key] is c[key] for key in c)
    if not isinstance(v, Symbol) or len(points) != 1 or not unchanged:
        return None
    return AffineDirection(v.gradient, v.model, v.terms, points[0])


def _generator_states(cuda: Sequence[torch.device]) -> list[Tensor]:
    return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, cuda)]


@dataclass(frozen=True, eq=False)
class Symbol:
    """The value `gradient·g + model·w + Σ coefficient·vector` for unknown g and w."""

    shape: tuple[int, int]
    like: Vec
    gradient: Coefficient = 0.0
    model: Coefficient = 0.0
    terms: tuple[Term, ...] = field(default=())

    __array_ufunc__ = None  # makes NumPy scalars defer to this class

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> "Symbol":
        """Handle torch functions and operators called on a symbol, as far as they are affine."""
        if function not in _AFFINE or len(args) != 2 or not (kwargs or {}).keys() <= {"alpha"}:
            raise NotAffineError(function)
        one, other = args
        if kwargs:
            other = other * kwargs["alpha"]
        return _AFFINE[function](one, other)

    def __add__(self, other: Any) -> "Symbol":
        return self._plus(1.0, other)

    def __sub__(self, other: Any) -> "Symbol":
        return self._plus(-1.0, other)

    def __rsub__(self, other: Any) -> "Symbol":
        return (-self)._plus(1.0, other)

    def __mul__(self, other: Any) -> "Symbol":
        by = self._coefficient(other)
        terms = tuple((by * coefficient, vector) for coefficient, vector in self.terms)
        return replace(self, gradient=by * self.gradient, model=by * self.model, terms=terms)

    def __truediv__(self, other: Any) -> "Symbol":
        return self * (1.0 / self._coefficient(other))

    def __neg__(self) -> "Symbol":
        return self * -1.0

    __radd__, __rmul__ = __add__, __mul__

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        raise NotAffineError

    def __getattr__(self, name: str) -> Any:
        if name in ("dtype", "device"):
            return getattr(self.like, name)
        raise NotAffineError(name)

    def _plus(self, sign: float, other: Any) -> "Symbol":
        if isinstance(other, Symbol):
            return replace(
                self,
                gradient=self.gradient + sign * other.gradient,
                model=self.model + sign * other.model,
                terms=self.terms + (other * sign).terms,
            )
        if isinstance(other, Tensor) and tuple(other.shape) in (self.shape, self.shape[1:]):
            return replace(self, terms=(*self.terms, (sign, other)))
        raise NotAffineError

    def _coefficient(self, value: Any) -> Coefficient:
        """Return a number, or one number per client, as a coefficient; raise NotAffineError for anything else."""
        if not isinstance(value, Tensor):
            return float(value)
        if value.numel() == 1:
            return float(value)
        if tuple(value.shape) == (self.shape[0], 1) and self.shape[1] > 1:
            return value
        raise NotAffineError


@dataclass(frozen=True, eq=False)
class SymbolicOracle:
    """An oracle of symbols that records the points at which gradients are requested."""

    points: list[GradientPoint]
    point: GradientPoint = field(default_factory=GradientPoint)

    def __call__(self, w: Vec) -> Vec:
        at = cast(Any, w)
        if not isinstance(at, Symbol) or isinstance(at.model, Tensor) or at.model != 1.0:
            raise NotAffineError
        if isinstance(at.gradient, Tensor) or at.gradient:
            raise NotAffineError
        offset = AffineDirection(terms=at.terms).shift()
        self.points.append(self.point if offset is None else self.point.shifted(offset))
        return cast(Vec, Symbol(at.shape, at.like, gradient=1.0))

    def shifted(self, e: Vec) -> "SymbolicOracle":
        return SymbolicOracle(self.points, self.point.shifted(e))

    def ascended(self, rho: float) -> "SymbolicOracle":
        return SymbolicOracle(self.points, self.point.ascended(rho))

    def of_classes(self, classes: Tensor) -> Callable[[Vec], Vec]:
        raise NotAffineError

    def generators(self) -> list[np.random.Generator]:
        raise NotAffineError


def _product(one: Any, other: Any) -> Symbol:
    symbol, by = (one, other) if isinstance(one, Symbol) else (other, one)
    return cast(Symbol, symbol * by)


def _sum(one: Any, other: Any) -> Symbol:
    symbol, more = (one, other) if isinstance(one, Symbol) else (other, one)
    return cast(Symbol, symbol + more)


def _difference(one: Any, other: Any) -> Symbol:
    return cast(Symbol, one - other if isinstance(one, Symbol) else other.__rsub__(one))


_AFFINE: dict[Any, Callable[[Any, Any], Symbol]] = {
    torch.add: _sum,
    Tensor.add: _sum,
    torch.sub: _difference,
    Tensor.sub: _difference,
    torch.mul: _product,
    Tensor.mul: _product,
}
"""Handlers of torch's binary operators and functions with a symbol as one of the arguments."""
