"""The engine runs FedReLa as its formulas say, round by round: models, and the labels that clients change."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from fedwcm.core.rng import Purpose, generator

from .. import factories
from .longtail_rounds import (
    CLASSES,
    CLOSE,
    HOLDINGS,
    SEED,
    STACKED,
    assert_all_different,
    assert_models,
    played,
    settings_of,
    transcription,
)
from .zoo_fedrela import RelabelledRun, changed_labels, flip_rates, run_fedrela
from .zoo_losses import Vector

ROUNDS = 10  # of the engine's population: the rounds that are played are its first ones
CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"start": 0.1}, {}),
    ({"start": 0.1, "slowdown": 1.0, "server_lr": 0.6}, {"threshold": 0.4}),
    ({"start": 0.15, "slowdown": 0.5}, {"threshold": 0.25}),
    ({"start": 0.4, "slowdown": 1.5, "average": "uniform"}, {"threshold": 1.0}),
    ({"start": 0.3}, {"threshold": 0.4}),  # nobody answers in the round before
    ({"start": 0.0, "slowdown": 0.7}, {"threshold": 0.0}),
    ({"start": 0.0, "slowdown": 0.7}, {"threshold": 0.1}),
]
"""The method's and the loss's options."""


def uniforms(client: int) -> Vector:
    return generator(SEED, Purpose.LOSS, 0, client).random((factories.SIZES[client], CLASSES))


@cache
def relabelled(case: int) -> RelabelledRun:
    method, loss = CASES[case]
    run: RelabelledRun = transcription(run_fedrela, rounds=ROUNDS, uniforms=uniforms, **method, **loss)
    return run


@STACKED
@pytest.mark.parametrize("case", range(len(CASES)))
def test_fedrela(case: int, stacked: bool) -> None:
    states, run = played(settings_of("fedrela", *CASES[case]), stacked), relabelled(case)
    assert_models(states, run.models)
    np.testing.assert_allclose(states[-1][0].method["labeller"].numpy(), run.labeller[0], **CLOSE)


def test_labels_are_changed_towards_rarer_classes_in_most_cases() -> None:
    changes = []
    for case in range(len(CASES)):
        pairs = [(HOLDINGS[k][1], labels) for k, labels in relabelled(case).labels.items()]
        changes.append(sum(int((old != new).sum()) for old, new in pairs))
        for old, new in pairs:
            counts = np.bincount(old, minlength=CLASSES)
            assert (counts[new] <= counts[old]).all()
    assert changes[5] == 0, "no value of a class exceeds the largest"
    assert all(changes[case] > 5 for case in (1, 2, 3, 4, 6))


def test_a_class_takes_samples_that_stand_out_and_are_of_a_more_frequent_class() -> None:
    """Four samples of class 0, two of class 1 and none of class 2: rarities 0, 1/2 and 1."""
    of_class_1, y = np.array([0.2, 0.2, 0.2, 0.6, 0.8, 0.6]), np.array([0, 0, 0, 0, 1, 1])
    p = np.stack([0.9 - of_class_1, of_class_1, np.full(6, 0.1)], axis=1)
    rates = flip_rates(p, y, 0.2)  # z_1 is three times -1/sqrt(3), sqrt(3), 1 and -1: one exceeds t_1 = 1
    assert rates[3, 1] == pytest.approx(np.tanh(np.sqrt(3) - 1) * 0.5)
    assert rates[:3, 1].tolist() == pytest.approx([np.tanh(-1 / np.sqrt(3) - 1) * 0.5] * 3)
    assert not rates[:, 0].any()
    assert changed_labels(p, y, 0.2, np.full((6, 3), 0.2)).tolist() == [0, 0, 0, 1, 1, 1]
    assert changed_labels(p, y, 0.2, np.full((6, 3), 0.4)).tolist() == y.tolist()


def test_no_two_cases_have_the_same_outcome() -> None:
    assert_all_different([relabelled(case).models[-1] for case in range(len(CASES))])
