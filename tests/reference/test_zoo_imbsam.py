"""The engine runs ImbSAM as its formulas say, round by round."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from .. import factories
from .longtail_rounds import (
    BATCH,
    CLOSE,
    COHORTS,
    COUNTS,
    EPOCHS,
    HOLDINGS,
    NET,
    RATES,
    STACKED,
    assert_all_different,
    assert_models,
    initial,
    played,
    settings_of,
    transcription,
    visited,
)
from .zoo_imbsam import rare_classes, run_imbsam
from .zoo_losses import Vector, cross_entropy
from .zoo_sam import run_fedsam

CASES: list[dict[str, Any]] = [
    {},
    {"rho": 0.5, "tail_share": 0.1},
    {"rho": 0.3, "tail_share": 0.5, "average": "uniform"},
    {"rho": 0.5, "tail_share": 18 / 113, "server_lr": 0.6},
    {"rho": 0.3, "tail_share": 1.0},
]


@cache
def models(case: int) -> list[Vector]:
    return list(transcription(run_imbsam, **CASES[case]))


@STACKED
@pytest.mark.parametrize("case", range(len(CASES)))
def test_imbsam(case: int, stacked: bool) -> None:
    assert_models(played(settings_of("imbsam", CASES[case]), stacked), models(case))


def gradient(client: int, round_: int, step: int, y: Vector) -> Vector:
    at = visited(client, round_)[step]
    inputs, labels = HOLDINGS[client][0][at], HOLDINGS[client][1][at]
    return NET.backward(y, inputs, cross_entropy(NET.logits(y, inputs), labels)[1])


def test_the_transcription_with_all_classes_in_the_tail_is_fedsam() -> None:
    shared = {"epochs": EPOCHS, "batch_size": BATCH, "average": "samples", **RATES}
    plain = run_fedsam(initial(), gradient, factories.SIZES, COHORTS, rho=0.3, **shared)
    for x, y in zip(models(4), plain, strict=True):
        np.testing.assert_allclose(x, y, **CLOSE)


def test_the_cases_have_different_tails_up_to_one_that_holds_exactly_its_share() -> None:
    totals = COUNTS.sum(axis=0)
    assert totals.tolist() == [64, 31, 11, 7]
    tails = [rare_classes(totals, case.get("tail_share", 0.2)) for case in CASES]
    assert tails == [{2, 3}, {3}, {1, 2, 3}, {2, 3}, {0, 1, 2, 3}]
    tailless = [not np.isin(HOLDINGS[k][1][at], [2, 3]).any() for k in range(5) for at in visited(k, 0)]
    assert any(tailless)
    assert not all(tailless)


def test_no_two_cases_have_the_same_outcome() -> None:
    assert_all_different([models(case)[-1] for case in range(len(CASES))])
