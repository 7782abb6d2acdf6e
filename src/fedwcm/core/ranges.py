"""The numbers that an option may be, as part of its type: `rho: NonNegative = 0.05`."""

from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Annotated, Any, get_args, get_type_hints


@dataclass(frozen=True)
class Range:
    """An interval. An end is part of it unless it is `open`; infinity is a number above all others."""

    low: float
    high: float = inf
    open: str = ""

    def __contains__(self, value: float) -> bool:
        above = value > self.low if "low" in self.open else value >= self.low
        below = value < self.high if "high" in self.open else value <= self.high
        return above and below

    def __str__(self) -> str:
        if self.high == inf and self.low == 0:
            return ("positive" if "low" in self.open else "non-negative") + " and finite" * ("high" in self.open)
        if self.high == inf:
            return f"at least {self.low:g}"
        start, end = "(" if "low" in self.open else "[", ")" if "high" in self.open else "]"
        return f"in {start}{self.low:g}, {self.high:g}{end}"


NonNegative = Annotated[float, Range(0)]
Positive = Annotated[float, Range(0, open="low")]
Finite = Annotated[float, Range(0, open="low, high")]
AtLeastOne = Annotated[float, Range(1)]
Share = Annotated[float, Range(0, 1)]
PositiveShare = Annotated[float, Range(0, 1, open="low")]
BelowOne = Annotated[float, Range(0, 1, open="high")]
Inside = Annotated[float, Range(0, 1, open="low, high")]
Count = Annotated[int, Range(1)]
CountOrZero = Annotated[int, Range(0)]


def field_ranges(cls: type) -> dict[str, Range]:
    """Return the ranges of a class's fields, also of those that may be something else than a number."""
    return _field_ranges(cls)


@cache
def _field_ranges(cls: Any) -> dict[str, Range]:
    hints = get_type_hints(cls, include_extras=True)
    return {name: found[0] for name, kind in hints.items() if (found := _ranges(kind))}


def _ranges(kind: Any) -> list[Range]:
    marks = [mark for mark in getattr(kind, "__metadata__", ()) if isinstance(mark, Range)]
    return marks or [mark for argument in get_args(kind) for mark in _ranges(argument)]
