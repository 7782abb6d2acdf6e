"""The contract, over the whole registry."""

from dataclasses import dataclass
from typing import Any

import pytest

from fedwcm.core.method import Method
from fedwcm.losses.cross_entropy import CrossEntropy
from fedwcm.methods import METHODS
from fedwcm.testing import CHECKS, Check, check_docstring_cites_its_source

CHEAP: dict[str, dict[str, Any]] = {
    "creff": {"retrain_epochs": 20, "match_steps": 30, "features": 20, "retrain_lr": 0.1, "feature_lr": 1.0},
}
"""Options that make a check affordable and leave the method what it is."""

NAMES = [*(name for name in METHODS if name != "clip2fl"), "mofedsam+wcm", "fedcm+wcm"]
"""CLIP2FL needs a teacher's file: its own tests make one and run the checks."""


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", NAMES)
def test_method_keeps_the_contract(name: str, check: Check) -> None:
    check(METHODS[name], CHEAP.get(name, {}), CrossEntropy())


@dataclass(frozen=True, kw_only=True)
class Cited(Method):
    """FedAvg (McMahan et al., 2017), in a file that says nothing of it, as a notebook is."""


@dataclass(frozen=True, kw_only=True)
class Uncited(Method):
    """FedAvg."""


def test_a_source_may_be_cited_by_the_class_alone_but_must_be_cited() -> None:
    check_docstring_cites_its_source(Cited, {}, CrossEntropy())
    with pytest.raises(AssertionError, match="cite a source"):
        check_docstring_cites_its_source(Uncited, {}, CrossEntropy())
