"""Axes, styles and figures without news: what a diverged run must not do to the others, and what is not drawn."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwcm.reports.content import constant_note, is_constant
from fedwcm.reports.figures import Bar, Bars, Curve, Curves
from fedwcm.reports.styles import (
    DARK,
    DASHES,
    FAR,
    HATCHES,
    LIGHT,
    MARKERS,
    off_scale,
    styles_of,
    upper_limit,
    visible_top,
)

CALM = [2.3 * 0.9**number for number in range(30)]
DIVERGED = [2.3, 2.1, 4.0, 90.0, 5e4, 3e9, 1e20, 3e31]


def figure(
    *curves: list[float], by_method: bool = True, bounds: tuple[float, float | None] | None = (0, None)
) -> Curves:
    made = [Curve(f"m{i}", list(range(1, len(y) + 1)), y) for i, y in enumerate(curves)]
    return Curves(
        key="loss", title="Loss", caption="", y_label="loss", curves=made, by_method=by_method, bounds=bounds
    )


@pytest.mark.parametrize("calm", [1, 2, 9])
def test_a_diverged_run_does_not_flatten_the_others(calm: int) -> None:
    drawn = figure(*[CALM] * calm, DIVERGED)
    limit = upper_limit(drawn)
    assert limit is not None
    assert max(CALM) < limit <= FAR * max(CALM)
    assert visible_top(drawn, drawn.curves) <= 2 * max(CALM)  # the others take half of the height, or more
    assert off_scale(drawn) == {f"m{calm}": 3e31}


def test_a_run_that_diverges_alone_shows_where_it_was_before() -> None:
    drawn = figure(DIVERGED, [1.5, 1.4, 3.0, 60.0, 1e4, 1e9, 1e19, 1e30], by_method=False)
    assert visible_top(drawn, drawn.curves) == 4.0
    assert set(off_scale(drawn)) == {"m0", "m1"}


def test_a_run_that_is_out_of_control_from_its_first_round_on_shows_where_it_went() -> None:
    drawn = figure([3e7, 4e9, 800.0, 430.0, 410.0, 450.0, 420.0], by_method=False)
    assert visible_top(drawn, drawn.curves) == 800.0


@given(st.integers(1, 7), st.integers(1, 30))
def test_in_a_grid_a_colour_belongs_to_a_method_and_a_pattern_to_a_setting(methods: int, settings: int) -> None:
    series = [(f"m{m}", f"s{s}") for m in range(methods) for s in range(settings)]
    styles = styles_of(series)
    assert len(set(styles.values())) == len(series)
    assert {styles[m, s] % len(LIGHT) for m, s in series if m == "m0"} == {0}
    assert len({styles[m, s] % (len(DASHES) * len(MARKERS)) for m, s in series if s == "s0"}) == 1


def test_of_more_methods_than_colours_all_look_different() -> None:
    series = [(f"m{m}", f"s{s}") for m in range(12) for s in range(4)]
    assert sorted(styles_of(series).values()) == list(range(48))


def test_one_loss_of_a_run_does_not_flatten_the_other() -> None:
    training = [1e10, 9.0, 3e11, 8.0]
    same = replace(figure([25.0, 12.0, 30.0, 12.0], training, by_method=False), comparable=True)
    assert visible_top(same, same.curves) == 30.0


def test_bands_of_a_method_with_one_diverged_seed_stay_within() -> None:
    mean, spread = [2.0, 1.5, 1e31], [0.1, 1e30, 2e31]
    drawn = Curves(
        key="loss",
        title="Loss",
        caption="",
        y_label="loss",
        by_method=True,
        curves=[Curve("calm", [1, 2, 3], [2.0, 1.0, 0.5]), Curve("one of three", [1, 2, 3], mean, spread)],
    )
    limit = upper_limit(drawn)
    assert limit is not None
    assert visible_top(drawn, drawn.curves) <= limit <= FAR * 2.0


@given(st.lists(st.floats(1, FAR), min_size=1, max_size=8), st.integers(2, 40), st.booleans())
def test_curves_that_start_alike_and_fall_are_never_cut(starts: list[float], length: int, by_method: bool) -> None:
    curves = [[start * 0.5**number for number in range(length)] for start in starts]
    assert upper_limit(figure(*curves, by_method=by_method)) is None


def test_what_grows_steadily_or_has_an_upper_bound_is_never_cut() -> None:
    assert upper_limit(figure([0.1 * number for number in range(1, 200)], by_method=False)) is None
    assert upper_limit(figure([0.001] * 9, [1.0] * 9, bounds=(0, 1))) is None
    assert upper_limit(figure([0.0] * 5, [0.0] * 5)) is None
    assert upper_limit(figure()) is None


def test_series_are_told_apart_whatever_their_number() -> None:
    def looks(index: int, *kinds: int) -> tuple[int, ...]:
        return tuple(index % kind for kind in kinds)

    colours, dashes, markers, hatches = len(LIGHT), len(DASHES), len(MARKERS), len(HATCHES)
    assert len(DARK) == colours
    assert len({looks(i, colours, dashes, markers) for i in range(210)}) == 210
    assert len({looks(i, colours, dashes) for i in range(35)}) == 35  # two marks that black and white print keeps
    assert len({looks(i, colours, hatches) for i in range(35)}) == 35
    assert len({looks(i, dashes, markers) for i in range(30)}) == 30  # without any colour
    assert all(
        a != b
        for one, other in pairwise(range(50))
        for a, b in zip(looks(one, colours, dashes, markers), looks(other, colours, dashes, markers), strict=True)
    )


def luminance(colour: str) -> float:
    """Relative luminance as in WCAG 2."""
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize(("colours", "ground"), [(LIGHT, "#ffffff"), (DARK, "#181d23")])
def test_lines_stand_out_from_the_ground(colours: tuple[str, ...], ground: str) -> None:
    for colour in colours:
        light, dark = sorted((luminance(colour), luminance(ground)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 2


def test_what_is_constant_is_said_and_not_drawn() -> None:
    level = Curves(
        key="alpha",
        title="Alpha",
        caption="",
        y_label="alpha",
        curves=[Curve("fedcm", [1, 2], [0.1, 0.1]), Curve("fedwcm", [1, 2], [0.5, 0.5])],
    )
    assert is_constant(level)
    assert constant_note([level]) == "Constant, and so not drawn: “Alpha” (fedcm 0.1, fedwcm 0.5)."
    assert not is_constant(figure([0.1, 0.1], [0.1, 0.2]))
    assert not is_constant(figure([0.1]))  # one round tells nothing about the others
    assert constant_note([]) == ""


def test_bars_of_equal_costs_are_said_once() -> None:
    def cost(*values: float) -> Bars:
        bars = [Bar(f"m{i}", [value]) for i, value in enumerate(values)]
        return Bars(key="bytes", title="Bytes", caption="", categories=[""], bars=bars, x_label="", y_label="MB")

    assert is_constant(cost(1.5, 1.5))
    assert constant_note([cost(1.5, 1.5)]) == "Constant, and so not drawn: “Bytes” (1.5 MB)."
    assert not is_constant(cost(1.5, 3.0))
    assert not is_constant(cost(1.5))
