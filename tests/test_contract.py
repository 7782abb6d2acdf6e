"""The contract, over the whole registry."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import fedwcm
from fedwcm.core.batch import LocalData
from fedwcm.core.method import FinalPass, Method
from fedwcm.core.types import Cohort, Context, Floats, GradientOracle, Report, State, Vec
from fedwcm.losses.cross_entropy import CrossEntropy
from fedwcm.methods import METHODS
from fedwcm.testing import CHECKS, DOCUMENTATION, Check, check_it_is_documented, check_method

CHEAP: dict[str, dict[str, Any]] = {
    "ccvr": {"last": 20, "virtual": 20, "retrain_epochs": 2, "retrain_batch": 16},
    "rucr": {"last": 20, "mixtures": 10, "retrain_epochs": 2, "retrain_batch": 16},
    "fednpc": {"noise_steps": 3, "noise_samples": 500},
    "fedic": {"distill_steps": 10},
    "creff": {"retrain_epochs": 20, "match_steps": 30, "features": 20, "retrain_lr": 0.1, "feature_lr": 1.0},
}
"""Options that make a check affordable and leave the method what it is."""

NAMES = [*(name for name in METHODS if name != "clip2fl"), "mofedsam+wcm", "fedcm+wcm"]
"""CLIP2FL needs a teacher's file: its own tests make one and run the checks."""

CASES = [(name, CHEAP.get(name, {})) for name in NAMES] + [
    (name, {"memory": "server"}) for name in ("fedlesam", "fedlesam-s", "fedlesam-d")
]


@pytest.mark.parametrize(
    "check", [*CHECKS, *DOCUMENTATION], ids=lambda check: check.__name__.removeprefix("check_")
)
@pytest.mark.parametrize(
    ("name", "options"), CASES, ids=[f"{name} {options}".removesuffix(" {}") for name, options in CASES]
)
def test_method_keeps_the_contract(name: str, options: dict[str, Any], check: Check) -> None:
    check(METHODS[name], options, CrossEntropy())


@dataclass(frozen=True, kw_only=True)
class Cited(Method):
    """FedAvg (McMahan et al., 2017), in a file that says nothing of it, as a notebook is."""

    name: ClassVar[str] = "cited"


@dataclass(frozen=True, kw_only=True)
class Uncited(Method):
    """FedAvg."""


def test_a_source_may_be_cited_by_the_class_alone_but_must_be_cited() -> None:
    check_it_is_documented(Cited, {}, CrossEntropy())
    with pytest.raises(AssertionError, match="cite a source"):
        check_it_is_documented(Uncited, {}, CrossEntropy())


def test_a_method_of_ones_own_needs_no_name_and_no_source() -> None:
    check_method(Uncited)


class Undecorated(Method):
    """FedAvg with a field that is none."""

    title: ClassVar[str] = "no option"
    power: float = 1.0


def test_fields_without_a_dataclass_are_named() -> None:
    with pytest.raises(AssertionError, match=r"Undecorated has no @dataclass of its own: power is no option"):
        check_method(Undecorated)
    for given in (Undecorated, Undecorated()):
        with pytest.raises(ValueError, match="the method Undecorated has no @dataclass of its own"):
            fedwcm.run(given, dataset="digits", rounds=1)


@dataclass(frozen=True, kw_only=True)
class Mixing(FinalPass, Method):
    """Divides by a norm over the whole block, in one of its hooks."""

    where: str = "direction"

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        g = grad(w)
        return (g / g.norm() if self.where == "direction" else g), c

    def conclude(self, w: Vec, local: LocalData, ctx: Context) -> State:
        return {"all": w / w.norm() if self.where == "conclude" else w}

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        upload, report, c = super().finish(w, c, ctx)
        delta = upload["delta"]
        return {"delta": delta - delta.mean(dim=0) if self.where == "finish" else delta}, report, c


MIXED = [("direction", ""), ("conclude", r" \(all\)"), ("finish", r" \(delta\)")]


@pytest.mark.parametrize(("where", "part"), MIXED)
def test_a_hook_that_mixes_the_clients_of_its_block_is_named(where: str, part: str) -> None:
    with pytest.raises(
        AssertionError, match=rf"Mixing.{where} mixes the rows of its block: .* in round 1{part} dep"
    ):
        check_method(Mixing, {"where": where})


@dataclass(frozen=True, kw_only=True)
class OneForAll(Method):
    """Reports one number for the whole block."""

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        upload, _, c = super().finish(w, c, ctx)
        return upload, {"norm": np.array([float(w.norm())])}, c


def test_a_report_of_one_number_for_all_clients_of_a_block_is_named() -> None:
    with pytest.raises(ValueError, match=r"OneForAll.finish returned 'norm' of shape \(1,\) in the report"):
        check_method(OneForAll)


@dataclass(frozen=True, kw_only=True)
class Still(Method):
    """Never moves."""

    def weights(self, s: State, cohort: Cohort) -> Floats:
        return np.zeros(len(cohort))


def test_behaviour_is_tested_without_documentation() -> None:
    with pytest.raises(AssertionError, match="accuracy is"):
        check_method(Still)


@dataclass(frozen=True, kw_only=True)
class Overwriting(Method):
    """Writes into what the server has sent."""

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        ctx.message["scale"].mul_(0.5)
        return super().finish(w, c, ctx)

    def broadcast(self, s: State) -> State:
        return {"scale": torch.ones(1)}


def test_a_hook_that_writes_into_an_argument_is_named() -> None:
    with pytest.raises(AssertionError, match=r"finish changed its argument \(scale\)"):
        check_method(Overwriting)
