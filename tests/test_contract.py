"""The contract, over the whole registry."""

from typing import Any

import pytest

from fedwcm.losses.cross_entropy import CrossEntropy
from fedwcm.methods import METHODS
from fedwcm.testing import CHECKS, Check

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
