"""The engine runs MOON, FedLoGe and RUCR as their formulas say, round by round: models and evaluated heads."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from fedwcm.core.frames import sparse_frame
from fedwcm.core.rng import Purpose, generator
from fedwcm.methods import METHODS

from .. import factories
from .finite_differences import derivative
from .longtail_rounds import (
    CLASSES,
    CLOSE,
    HIDDEN,
    NET,
    SEED,
    STACKED,
    Settings,
    assert_all_different,
    assert_models,
    played,
    settings_of,
    transcription,
)
from .zoo_anchored import Anchored, Retraining, contrast, run_fedloge, run_moon, run_rucr, unified
from .zoo_losses import Labels, Vector

PLANNED = 10
"""Rounds that the engine of these tests is told of; fewer are played."""
MOON: list[dict[str, Any]] = [{}, {"mu": 5.0, "tau": 0.2}]
FEDLOGE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"head_norm": 0.6, "average": "uniform"}, {"sparsity": 0.3, "norm": 1.0}),
    ({"realign": False, "server_lr": 0.6}, {"norm": 2.0}),
]
SMALL: dict[str, Any] = {"mixtures": 7, "retrain_epochs": 3, "retrain_batch": 9}
RUCR: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({**SMALL, "last": 7, "retrain_lr": 0.4}, {}),
    ({**SMALL, "last": 9, "retrain_lr": 0.1}, {"contrast": 1.0, "temperature": 0.3}),
    ({**SMALL, "last": 5, "server_lr": 0.6}, {"contrast": 0.6, "temperature": 2.0}),
]


def mixing(options: dict[str, Any], k: int, r: int) -> tuple[Labels, Vector, list[Labels]]:
    """What a client draws in a round: each mixture's sample and share, and the order of its mini-batches."""
    shape, size = (CLASSES, options["mixtures"]), options["retrain_batch"]
    rng = generator(SEED, Purpose.METHOD, r, k)
    rows, share = rng.integers(factories.SIZES[k], size=shape), rng.uniform(0.35, 0.95, size=shape)
    shuffles = torch.Generator().manual_seed(int(generator(SEED, Purpose.METHOD, r, k).integers(2**63)))
    total = CLASSES * options["mixtures"]
    orders = [torch.randperm(total, generator=shuffles).numpy() for _ in range(options["retrain_epochs"])]
    return rows, share, [order[cut : cut + size] for order in orders for cut in range(0, total, size)]


@cache
def moon(case: int) -> Anchored:
    run: Anchored = transcription(run_moon, **MOON[case])
    return run


@cache
def fedloge(case: int) -> Anchored:
    method, loss = ({**own} for own in FEDLOGE[case])
    frame = sparse_frame(CLASSES, HIDDEN, loss.get("sparsity", 0.6), loss.get("norm", 0.1))
    if not method.pop("realign", True):
        method["head_norm"] = None
    run: Anchored = transcription(run_fedloge, frame=frame, **method)
    return run


@cache
def rucr(case: int) -> Anchored:
    method, loss = ({**own} for own in RUCR[case])
    start = PLANNED - method["last"]
    retraining = Retraining(start, lambda k, r: mixing(method, k, r), method.get("retrain_lr", 0.01))
    local = {"server_lr": method.get("server_lr", 1.0), "temperature": loss.get("temperature", 0.9)}
    run: Anchored = transcription(run_rucr, retraining=retraining, weight=loss.get("contrast", 0.15), **local)
    return run


def assert_played(settings: Settings, stacked: bool, run: Anchored) -> None:
    """The model in training is the transcription's, and so is the one that is evaluated."""
    states = played(settings, stacked)
    own = {key: value for key, value in settings.items() if key.startswith("method.") and key != "method.name"}
    method = METHODS[settings["method.name"]](**{key.removeprefix("method."): own[key] for key in own})
    assert_models(states, run.models)
    for (state, _), x, head in zip(states, *run, strict=True):
        evaluated = method.eval_params(state.x, state.method)
        np.testing.assert_allclose(evaluated.numpy(), NET.with_head(x, head), **CLOSE)


@STACKED
@pytest.mark.parametrize("case", range(len(MOON)))
def test_moon(case: int, stacked: bool) -> None:
    options = {f"loss.{key}": value for key, value in MOON[case].items()}
    assert_played({"method.name": "fedavg", "loss.name": "moon", **options}, stacked, moon(case))


@STACKED
@pytest.mark.parametrize("case", range(len(FEDLOGE)))
def test_fedloge(case: int, stacked: bool) -> None:
    assert_played(settings_of("fedloge", *FEDLOGE[case]), stacked, fedloge(case))


@STACKED
@pytest.mark.parametrize("case", range(len(RUCR)))
def test_rucr(case: int, stacked: bool) -> None:
    assert_played(settings_of("rucr", *RUCR[case]), stacked, rucr(case))


def test_the_written_gradients_are_slopes() -> None:
    rng, labels = np.random.default_rng(4), np.array([0, 2, 1, 2, 3])
    f, received, last = rng.normal(size=(3, len(labels), HIDDEN))
    slope = derivative(lambda at: contrast(at, received, last, 0.3)[0], f)
    np.testing.assert_allclose(contrast(f, received, last, 0.3)[1], slope, rtol=1e-6, atol=1e-8)
    means, present, share = (
        rng.normal(size=(CLASSES, HIDDEN)),
        np.array([1, 1, 0, 1]),
        np.log([0.5, 0.3, 0.1, 0.1]),
    )
    slope = derivative(lambda at: unified(at, labels, means, present, share, 0.7)[0], f)
    np.testing.assert_allclose(unified(f, labels, means, present, share, 0.7)[1], slope, rtol=1e-6, atol=1e-8)


def test_no_two_cases_have_the_same_models_and_heads() -> None:
    runs = [moon(case) for case in range(len(MOON))]
    runs += [fedloge(case) for case in range(len(FEDLOGE))] + [rucr(case) for case in range(len(RUCR))]
    assert_all_different([NET.with_head(run.models[-1], run.heads[-1]) for run in runs])
