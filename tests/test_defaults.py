"""Defaults are those that the pages state: a test that reads them from the code cannot see them change."""

from dataclasses import fields
from pathlib import Path

import pytest
from tools.make_method_pages import METHOD_LOSSES, _options

from fedwcm.losses import LOSSES
from fedwcm.methods import METHODS
from fedwcm.metrics.classification import Z_95
from fedwcm.metrics.tradeoff import DRAWN, STRENGTHS
from fedwcm.samplers import SAMPLERS

PAGES = Path(__file__).parents[1] / "docs" / "methods"
WITH_PAGE = [*METHODS.values(), *METHOD_LOSSES.values()]
WITHOUT_PAGE = {
    "class_weights": {"scheme": "inverse", "prior": "client", "beta": 0.9999},
    "cross_entropy": {},
    "distillation": {"teacher": "teacher.safetensors", "alpha": 1.0, "temperature": 3.0},
    "focal": {"gamma": 2.0},
    "grab": {"kp": 10.0, "ki": 0.01, "kd": 0.1, "slope": 0.5},
    "ldam": {"max_margin": 0.5, "scale": 30.0, "prior": "client", "drw": 0.8, "beta": 0.9999, "normalize": True},
    "prior_ce": {"prior": "client", "tau": 1.0, "normalize": False, "scale": 1.0},
    "balanced": {"cap": None},
    "uniform": {},
}


@pytest.mark.parametrize("cls", WITH_PAGE, ids=lambda cls: f"{cls.__module__}.{cls.name}")
def test_the_page_of_a_method_has_its_options_and_defaults(cls: type) -> None:
    """If not: python -m tools.make_method_pages."""
    page = (PAGES / f"{cls.name}.md").read_text(encoding="utf-8")  # type: ignore[attr-defined]
    assert "\n".join(_options(cls)) in page


def test_losses_and_samplers_without_a_page_have_these_defaults() -> None:
    known = {**LOSSES, **SAMPLERS}
    assert set(known) - set(METHOD_LOSSES) == set(WITHOUT_PAGE)
    for name, defaults in WITHOUT_PAGE.items():
        assert {field.name: field.default for field in fields(known[name])} == defaults  # type: ignore[arg-type]


def test_a_trade_off_is_drawn_over_these_strengths() -> None:
    assert (STRENGTHS[0], STRENGTHS[24:27], STRENGTHS[-1], len(STRENGTHS)) == (-2.5, (-0.1, 0.0, 0.1), 2.5, 51)
    assert (DRAWN[0], DRAWN[9:12], DRAWN[-1], len(DRAWN)) == (-2.5, (-0.25, 0.0, 0.25), 2.5, 21)
    assert Z_95 == 1.959964
