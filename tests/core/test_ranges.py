"""Ranges of options: where they end, how they are said, and that every option of a component keeps to its own."""

from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from math import inf, nan
from typing import Any

import pytest

from fedwcm.core import ranges
from fedwcm.core.checks import require_allowed
from fedwcm.core.ranges import Range, field_ranges
from fedwcm.engine.participation import PARTICIPATIONS
from fedwcm.losses import LOSSES
from fedwcm.methods import METHODS
from fedwcm.samplers import SAMPLERS

ENDS: dict[str, tuple[str, tuple[float, ...], tuple[float, ...]]] = {
    "NonNegative": ("non-negative", (0.0, 0.1, inf), (-1e-9, nan)),
    "Positive": ("positive", (1e-9, inf), (0.0, -1.0, nan)),
    "Finite": ("positive and finite", (1e-9, 1e30), (0.0, inf, nan)),
    "AtLeastOne": ("at least 1", (1.0, 7.5), (0.999, nan)),
    "Share": ("in [0, 1]", (0.0, 1.0), (-1e-9, 1.001, nan)),
    "PositiveShare": ("in (0, 1]", (1e-9, 1.0), (0.0, 1.001)),
    "BelowOne": ("in [0, 1)", (0.0, 0.999), (-1e-9, 1.0)),
    "Inside": ("in (0, 1)", (1e-9, 0.999), (0.0, 1.0)),
    "Count": ("at least 1", (1, 10**9), (0, -1)),
    "CountOrZero": ("non-negative", (0, 10**9), (-1,)),
}
COMPONENTS: list[Any] = [*METHODS.values(), *LOSSES.values(), *SAMPLERS.values(), *PARTICIPATIONS.values()]


def test_every_range_with_a_name_has_its_ends_here() -> None:
    assert {name for name in vars(ranges) if hasattr(getattr(ranges, name), "__metadata__")} == ENDS.keys()


@pytest.mark.parametrize("name", ENDS)
def test_a_range_has_its_ends_and_says_them(name: str) -> None:
    words, inside, outside = ENDS[name]
    (allowed,) = getattr(ranges, name).__metadata__
    assert str(allowed) == words
    assert [value in allowed for value in (*inside, *outside)] == [True] * len(inside) + [False] * len(outside)


def ranged_options() -> Iterator[Any]:
    for component in COMPONENTS:
        for field, allowed in field_ranges(component).items():
            yield pytest.param(component, field, allowed, id=f"{component.__name__}-{field}")


@pytest.mark.parametrize(("component", "field", "allowed"), ranged_options())
def test_a_component_refuses_what_is_outside_by_name(component: Any, field: str, allowed: Range) -> None:
    below = allowed.low if "low" in allowed.open else allowed.low - 1
    with pytest.raises(ValueError, match=f"^{field} = {below!r} is not allowed: it must be "):
        component(**{field: below})
    if allowed.high < inf:
        with pytest.raises(ValueError, match=f"^{field} = "):
            component(**{field: allowed.high + ("high" not in allowed.open)})


@pytest.mark.parametrize("component", [*METHODS.values(), *LOSSES.values()])
def test_an_option_with_another_default_keeps_its_range(component: Any) -> None:
    bases: list[Any] = [base for base in component.__mro__ if is_dataclass(base)]
    for base in bases:
        assert field_ranges(base).items() <= field_ranges(component).items()


@dataclass(frozen=True)
class Mixed:
    rate: ranges.Positive | None = None
    other: str = "any"


def test_an_option_may_be_missing_only_if_its_type_says_so() -> None:
    require_allowed(Mixed())
    with pytest.raises(ValueError, match=r"^rate = 0 is not allowed: it must be positive or none$"):
        require_allowed(Mixed(rate=0))
    wrong: Any = "fast"
    with pytest.raises(ValueError, match=r"^rate = 'fast' is not allowed"):
        require_allowed(Mixed(rate=wrong))
