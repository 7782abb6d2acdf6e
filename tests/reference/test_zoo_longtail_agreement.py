"""The engine runs FedWMSAM, BalanceFL and Fed-GraB as their formulas say, round by round.

Where the specification is open, the transcription is set to the reading that the package documents.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from fedwcm.core.rng import Purpose, generator
from fedwcm.core.types import State
from fedwcm.methods.fedgrab import FedGraB

from .. import factories
from .longtail_rounds import (
    BATCH,
    CLASSES,
    CLOSE,
    COHORTS,
    EPOCHS,
    HOLDINGS,
    NET,
    RATES,
    SEED,
    STACKED,
    assert_all_different,
    assert_models,
    initial,
    played,
    settings_of,
    transcription,
    visited,
)
from .zoo_balancefl import BalanceFL
from .zoo_grab import Mask, PriorAnalyser
from .zoo_longtail import Tail, run_balancefl, run_fedgrab
from .zoo_losses import Labels, Vector, cross_entropy
from .zoo_wmsam import Schedule, run_fedwmsam

# --- FedWMSAM ----------------------------------------------------------------------------------------------

QUICK: dict[str, Any] = {"rho": 0.2, "alpha_rate": 0.3, "alpha": 0.8}
"""Much of the fresh gradient, so that clients disagree with the momentum enough for alpha to move."""
WMSAM: list[dict[str, Any]] = [
    {"rho": 0.01, "alpha_rate": 0.01},
    QUICK,
    {**QUICK, "server_lr": 3.0},
    {**QUICK, "average": "samples"},
    {**QUICK, "momentum_norm": "nominal"},
    {**QUICK, "server_step": "literal"},
]


def gradient(client: int, round_: int, step: int, y: Vector) -> Vector:
    at = visited(client, round_)[step]
    inputs, labels = HOLDINGS[client][0][at], HOLDINGS[client][1][at]
    return NET.backward(y, inputs, cross_entropy(NET.logits(y, inputs), labels)[1])


@cache
def wmsam(case: int) -> tuple[list[Vector], list[float]]:
    """Models and alphas. The control variates are SCAFFOLD's, whatever the momentum is divided by."""
    own = dict(WMSAM[case])
    schedule = Schedule(rate=own.pop("alpha_rate"))
    shared = {"epochs": EPOCHS, "batch_size": BATCH, "schedule": schedule, **RATES}
    controls = {"control_norm": "exact", "controls": own.get("average", "uniform")}
    models = run_fedwmsam(initial(), gradient, factories.SIZES, COHORTS, **own, **shared, **controls)
    return models, schedule.trace


@STACKED
@pytest.mark.parametrize("case", range(len(WMSAM)))
def test_fedwmsam(case: int, stacked: bool) -> None:
    states = played(settings_of("fedwmsam", WMSAM[case]), stacked)
    models, alphas = wmsam(case)
    assert_models(states, models)
    answered = [state for (state, _), cohort in zip(states, COHORTS, strict=True) if cohort]
    np.testing.assert_allclose([float(state.method["alpha"]) for state in answered], alphas, **CLOSE)


# --- BalanceFL ---------------------------------------------------------------------------------------------

BALANCEFL: list[dict[str, Any]] = [
    {"lambda_": 1.0, "temperature": 2.0, "entropy": 0.002, "draws": 500},
    {"lambda_": 0.4, "temperature": 0.7, "entropy": 0.05, "draws": 30},
    {"lambda_": 3.0, "temperature": 2.0, "entropy": 0.0, "draws": 30},
]


def ring(size: int) -> tuple[Callable[..., Vector], Callable[..., Vector]]:
    """A round's uniform numbers and noise: pairs, of which each sample that a client visits takes the next."""

    def taken(k: int, r: int, b: int) -> Labels:
        rounds = sum(k in cohort for cohort in COHORTS[:r])
        *before, batch = visited(k, r, "balanced")[: b + 1]
        start = rounds * EPOCHS * factories.SIZES[k] + sum(map(len, before))
        return np.asarray((start + np.arange(len(batch))) % size)

    def drawn(k: int, r: int) -> tuple[Vector, Vector]:
        rng = generator(SEED, Purpose.LOSS, r, k)
        return rng.standard_normal((size, factories.SIZES[k])), rng.random(size)

    def uniforms(k: int, r: int, b: int, n: int) -> Vector:
        return drawn(k, r)[1][taken(k, r, b)]

    def noise(k: int, r: int, b: int, root: Vector, who: Mask) -> Vector:
        return np.asarray(drawn(k, r)[0][taken(k, r, b)] @ root)

    return uniforms, noise


@cache
def balancefl(case: int) -> list[Vector]:
    lam, temperature, entropy, size = BALANCEFL[case].values()
    weights = {"lam": lam, "temperature": temperature, "entropy_weight": entropy}
    method = BalanceFL(*ring(size), handed="root", **weights)
    return list(transcription(run_balancefl, sampler="balanced", method=method))


@STACKED
@pytest.mark.parametrize("case", range(len(BALANCEFL)))
def test_balancefl(case: int, stacked: bool) -> None:
    assert_models(played(settings_of("balancefl", loss=BALANCEFL[case]), stacked), balancefl(case))


# --- Fed-GraB ----------------------------------------------------------------------------------------------

GENTLE: dict[str, Any] = {"kp": 2.0, "ki": 0.5, "kd": 1.0, "slope": 0.2}
GRAB: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"head_share": 0.6, "server_lr": 2.0}, {}),
    ({"head_share": 0.95}, GENTLE),
    ({"head_share": 0.0}, GENTLE),
    ({"head_share": 0.75, "average": "uniform", "server_lr": 0.6}, {"kp": 2.0}),
]
"""The method's and the loss's options."""


@cache
def grab(case: int) -> list[Vector]:
    """No gate; controllers are closed before the first estimate, and forget what they knew when they close."""
    own, balancer = dict(GRAB[case][0]), {**GRAB[case][1], "closed": "reset"}
    share = own.pop("head_share")
    tail = Tail(rule="analysed" if share else "all", first="none", cuts=(share, share))
    return list(transcription(run_fedgrab, tail=tail, balancer=balancer, **own))


@STACKED
@pytest.mark.parametrize("case", range(len(GRAB)))
def test_fedgrab(case: int, stacked: bool) -> None:
    states = played(settings_of("fedgrab", *GRAB[case]), stacked)
    assert_models(states, grab(case))
    analyser = PriorAnalyser(CLASSES)
    for (state, _), x, cohort in zip(states, grab(case), COHORTS, strict=True):
        if cohort:
            analyser.see(NET.head_parts(NET.head(x))[0])
        np.testing.assert_allclose(state.method["shares"].numpy(), analyser.share, **CLOSE)


OPENED = [[0, 1, 2, 3], [0, 1, 2, 3], [2], [1, 3], [0, 1, 2, 3]]
"""Tail classes by the number of estimates so far: controllers that close and open again."""


class ScriptedTail(Tail):
    def classes(self, analyser: PriorAnalyser) -> list[int]:
        return OPENED[analyser.rounds]


def scripted_broadcast(method: FedGraB, s: State) -> State:
    opened = np.isin(np.arange(CLASSES), OPENED[int(s["estimates"])])
    return {"tail": torch.from_numpy(opened.astype(np.float64))}


@STACKED
def test_fedgrab_with_controllers_that_open_again(stacked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedGraB, "broadcast", scripted_broadcast)
    models, resting = (
        transcription(run_fedgrab, tail=ScriptedTail(), balancer={**GENTLE, "closed": closed})
        for closed in ("reset", "ignored")
    )
    assert np.abs(models[-1] - resting[-1]).max() > 1e-3, "nobody's controller opened again"
    assert_models(played(settings_of("fedgrab", loss=GENTLE), stacked), models)


# --- all of them -------------------------------------------------------------------------------------------


def test_no_two_cases_have_the_same_outcome() -> None:
    runs = [
        *(wmsam(case)[0] for case in range(len(WMSAM))),
        *(balancefl(case) for case in range(len(BALANCEFL))),
        *(grab(case) for case in range(len(GRAB))),
    ]
    assert_all_different([models[-1] for models in runs])
