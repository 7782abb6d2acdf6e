"""Defaults are those that the pages state: a test that reads them from the code cannot see them change."""

from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tools.make_method_pages import METHOD_LOSSES, _options

from fedwcm import balance
from fedwcm.data.partition import published
from fedwcm.engine import uploads
from fedwcm.experiment.components import component_needs
from fedwcm.losses import LOSSES, fedlc, fedrela, grab
from fedwcm.methods import METHODS, fedic, fednpc, fedwmsam, q_ffl, rucr
from fedwcm.metrics import calibration, classification, clients, diagnostics
from fedwcm.metrics.tradeoff import DRAWN, STRENGTHS
from fedwcm.reports import statistics
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


CONSTANTS: dict[ModuleType, dict[str, object]] = {
    balance: {"ALPHA_MARGIN": 1e-6, "ABSENT": 0.5, "SMALLEST_SHARE": 1e-9},
    calibration: {"BINS": 15},
    classification: {"SHOT_RATIO": 2.0, "MANY_SHARE": 0.75, "MEDIUM_SHARE": 0.95, "Z_95": 1.959964},
    clients: {"WORST_SHARE": 0.1},
    diagnostics: {"PER_CLASS": 100},
    statistics: {"LEVEL": 0.95, "MARGIN": 0.01, "FEW_SEEDS": 5, "MOST_SEEDS": 1000, "RESAMPLES": 2000},
    fedlc: {"ABSENT": 1e-8},
    fedrela: {"LEAST_DEVIATION": 1e-6},
    grab: {"EXPONENT_LIMIT": 50.0},
    published: {"_GROUP": 10, "_ATTEMPTS": 1000},
    fedic: {"DECAY": 2e-4, "BETA1": 0.9, "BETA2": 0.999, "EPSILON": 1e-8},
    fednpc: {"MOMENTUM": 0.9},
    fedwmsam: {"LOWEST": 0.1, "HIGHEST": 0.9},
    q_ffl: {"LEAST_LOSS": 1e-10},
    rucr: {"LEAST_SHARE": 0.35, "MOST_SHARE": 0.95},
    uploads: {"WIDEST_TRIM": 0.4995},
}
"""What papers or pages state, and no option changes."""


@pytest.mark.parametrize("module", CONSTANTS, ids=lambda module: module.__name__)
def test_constants_that_are_published_or_stated_have_these_values(module: ModuleType) -> None:
    assert {name: getattr(module, name) for name in CONSTANTS[module]} == CONSTANTS[module]


FACTS = {
    "depends_on_rounds": "ccvr fedrela rucr ldam",
    "uses_full_gradient": "mime mimelite",
    "replaces_head": "ccvr clip2fl creff fed3r fedloge fedncm fednpc rucr tau-norm",
    "reads_rows": "fedic",
    "reads_losses": "power-of-choice",
    "corrects_prior": "balancefl class_weights fedlc fedyoyo grab ldam prior_ce vs",
    "follows_target": "prior_ce",
    "averages_samples": "class_weights cross_entropy distillation fedlc fedloge fedntd fedproto fedrela fedrs "
    "focal grab ldam moon prior_ce rucr vs",
}
"""What the engine asks of a method or a loss, and which say yes."""


@pytest.mark.parametrize("fact", FACTS)
def test_a_method_and_a_loss_say_what_the_engine_asks_of_them(fact: str) -> None:
    made: list[Any] = [cls() for cls in (*METHODS.values(), *LOSSES.values())]
    assert {each.name for each in made if getattr(each, fact, False) is True} == {*FACTS[fact].split()}
    assert {getattr(each, fact, False) for each in made} == {True, False}


NEEDS: list[tuple[type, str, dict[str, Any], dict[str, Any]]] = [
    (METHODS["feddyn"], "eval_model", {"lam": 0.0}, {"lam": 1e-9}),
    (METHODS["fedlesam"], "memory", {"rho": 0.0}, {"rho": 1e-9}),
    (METHODS["fedloge"], "head_norm", {"realign": False}, {"realign": True}),
    (METHODS["imbsam"], "tail_share", {"rho": 0.0}, {"rho": 1e-9}),
    (METHODS["fedwcm"], "average", {}, {"weighting": False}),
    (METHODS["fedwcm"], "alpha_rule", {"adaptive": False}, {"adaptive": True}),
    (METHODS["fedwcm"], "score", {"weighting": False, "adaptive": False}, {"weighting": True, "adaptive": False}),
    (LOSSES["balancefl"], "temperature", {"lambda_": 0.0}, {"lambda_": 1e-9}),
    (LOSSES["class_weights"], "beta", {}, {"scheme": "effective"}),
    (LOSSES["distillation"], "temperature", {"alpha": 0.0}, {"alpha": 1e-9}),
    (LOSSES["fedntd"], "tau", {"beta": 0.0}, {"beta": 1e-9}),
    (LOSSES["fedyoyo"], "gamma", {"tau": 0.0}, {"tau": 1e-9}),
    (LOSSES["fedyoyo"], "temperature", {"distill": 0.0}, {"distill": 1e-9}),
    (LOSSES["ldam"], "prior", {"max_margin": 0.0, "drw": 1.0}, {"max_margin": 1e-9, "drw": 1.0}),
    (LOSSES["ldam"], "beta", {"drw": 1.0}, {"drw": 0.999}),
    (LOSSES["moon"], "tau", {"mu": 0.0}, {"mu": 1e-9}),
    (LOSSES["prior_ce"], "prior", {"tau": 0.0}, {"tau": 1e-9}),
    (LOSSES["rucr"], "temperature", {"contrast": 0.0}, {"contrast": 1e-9}),
    (LOSSES["vs"], "prior", {"gamma": 0.0, "tau": 0.0}, {"gamma": 1e-9, "tau": 0.0}),
]
"""Component, option, the others that switch it off, and those that just switch it on."""


@pytest.mark.parametrize(("cls", "option", "off", "on"), NEEDS)
def test_an_option_has_an_effect_just_where_it_says_so(
    cls: Any, option: str, off: dict[str, Any], on: dict[str, Any]
) -> None:
    has_effect = component_needs(cls)[option].condition
    assert [has_effect(cls(**options)) for options in (off, on)] == [False, True]


def test_a_trade_off_is_drawn_over_these_strengths() -> None:
    assert (STRENGTHS[0], STRENGTHS[24:27], STRENGTHS[-1], len(STRENGTHS)) == (-2.5, (-0.1, 0.0, 0.1), 2.5, 51)
    assert (DRAWN[0], DRAWN[9:12], DRAWN[-1], len(DRAWN)) == (-2.5, (-0.25, 0.0, 0.25), 2.5, 21)
