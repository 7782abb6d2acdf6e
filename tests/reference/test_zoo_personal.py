"""The engine runs Ditto and FedProto as their formulas say: the model of all, and that of each client."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from fedwcm.engine.rounds import ServerState

from .longtail_rounds import (
    CLASSES,
    CLOSE,
    COHORTS,
    HIDDEN,
    STACKED,
    Settings,
    assert_all_different,
    engine,
    initial,
    module,
    settings_of,
    transcription,
)
from .zoo_losses import Vector
from .zoo_personal import Models, run_ditto, run_fedproto

CPU = torch.device("cpu")


def played_by_clients(
    settings: Settings, stacked: bool, cohorts: Sequence[Sequence[int]] = COHORTS
) -> list[tuple[ServerState, Models]]:
    """The server's state after every round, and the own models of the clients that have taken part."""
    simulated, played = engine(settings, module(), stacked, cohorts), list[tuple[ServerState, Models]]()
    state = simulated.start(*simulated.trainer.forward.network.initial())
    for _ in cohorts:
        state, _ = simulated.step(state)
        ids = simulated.store.visited_clients()
        own = simulated.store.read(ids, CPU)["own"].numpy()
        played.append((state, dict(zip(ids.tolist(), own, strict=True))))
    return played


def assert_same(kept: Models, expected: Models, what: str) -> None:
    assert kept.keys() == expected.keys()
    for k, own in kept.items():
        np.testing.assert_allclose(own, expected[k], **CLOSE, err_msg=f"{k} {what}")


# --- Ditto -------------------------------------------------------------------------------------------------

DITTO: list[dict[str, Any]] = [
    {},
    {"lam": 2.0, "server_lr": 0.6},
    {"lam": 0.7, "average": "uniform"},
    {"lam": 0.0, "server_lr": 0.3},
]


@cache
def ditto(case: int) -> tuple[list[Vector], list[Models]]:
    models, own = transcription(run_ditto, **DITTO[case])
    return models, own


@STACKED
@pytest.mark.parametrize("case", range(len(DITTO)))
def test_ditto(case: int, stacked: bool) -> None:
    rounds = zip(played_by_clients(settings_of("ditto", DITTO[case]), stacked), *ditto(case), strict=True)
    for r, ((state, kept), x, own) in enumerate(rounds):
        np.testing.assert_allclose(state.x.numpy(), x, **CLOSE, err_msg=f"round {r}")
        assert_same(kept, own, f"in round {r}")


def test_where_a_clients_own_model_starts_makes_a_difference() -> None:
    started = transcription(run_ditto, first="initial")[1]
    first, *_ = COHORTS
    for k, own in ditto(0)[1][-1].items():
        assert np.allclose(own, started[-1][k]) == (k in first)


# --- FedProto ----------------------------------------------------------------------------------------------

NARROW: Sequence[Sequence[int]] = [[4], [1, 4], [], [3, 4], [0, 1]]
"""Nobody has classes 2 and 3 at first, and the round that brings class 2 has nobody with class 3."""

FEDPROTO: list[tuple[dict[str, Any], Sequence[Sequence[int]]]] = [
    ({}, COHORTS),
    ({"pull": 5.0}, COHORTS),
    ({"pull": 0.3}, NARROW),
    ({"pull": 0.0}, COHORTS),
]


@cache
def fedproto(case: int) -> tuple[list[Models], list[dict[int, Vector]]]:
    options, cohorts = FEDPROTO[case]
    own, means = transcription(run_fedproto, cohorts=cohorts, **options)
    return own, means


@STACKED
@pytest.mark.parametrize("case", range(len(FEDPROTO)))
def test_fedproto(case: int, stacked: bool) -> None:
    options, cohorts = FEDPROTO[case]
    played = played_by_clients(settings_of("fedproto", loss=options), stacked, cohorts)
    for r, ((state, kept), own, means) in enumerate(zip(played, *fedproto(case), strict=True)):
        np.testing.assert_array_equal(state.x.numpy(), initial())
        assert_same(kept, own, f"in round {r}")
        sent = np.array([means.get(c, np.zeros(HIDDEN)) for c in range(CLASSES)])
        np.testing.assert_allclose(state.method["means"].numpy(), sent, **CLOSE, err_msg=f"round {r}")
        assert state.method["known"].tolist() == [float(c in means) for c in range(CLASSES)]


def test_classes_become_known_one_after_the_other_and_stay_known() -> None:
    assert [sorted(means) for means in fedproto(2)[1]] == [
        [0, 1],
        [0, 1, 3],
        [0, 1, 3],
        [0, 1, 2, 3],
        [0, 1, 2, 3],
    ]


# --- both --------------------------------------------------------------------------------------------------


def test_no_two_cases_have_the_same_outcome() -> None:
    outcomes = [ditto(case)[1][-1] for case in range(len(DITTO))]
    outcomes += [fedproto(case)[0][-1] for case in range(len(FEDPROTO) - 1)]  # the last is Ditto's without a pull
    assert_all_different([np.concatenate([own[k] for k in (0, 1, 3, 4)]) for own in outcomes])
