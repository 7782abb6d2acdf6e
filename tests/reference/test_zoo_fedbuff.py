"""The engine runs FedBuff as its formula says, with late answers of a simulated clock."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from fedwcm.core.rng import Purpose, generator
from fedwcm.core.types import Ints
from fedwcm.engine.participation import Turns
from fedwcm.engine.rounds import Rounds

from .. import factories
from .longtail_rounds import (
    COUNTS,
    SEED,
    STACKED,
    assert_all_different,
    assert_models,
    engine,
    module,
    settings_of,
    transcription,
    visited,
)
from .zoo_fedbuff import BufferedRun, Clock, run_fedbuff

EVERYBODY = [0, 1, 2, 3, 4]
ASKED: Sequence[Sequence[int]] = [
    EVERYBODY,
    [0, 2],
    [1, 4],
    EVERYBODY,
    [],
    [0, 1, 3],
    EVERYBODY,
    [2, 3],
    EVERYBODY,
]
SPREAD = 0.8
CASES: list[tuple[dict[str, Any], float, int]] = [
    ({}, 0.9, 3),
    ({"power": 2.0, "server_lr": 0.6}, 0.9, 3),
    ({"power": 0.0}, 0.9, 3),
    ({"average": "samples", "power": 1.0}, 1.2, 2),
    ({"power": 1.0}, 0.7, 1),
    ({"power": 0.5}, 9.0, 1),
]
"""The method's options, the deadline, and by how many rounds an answer may be late."""


@dataclass(frozen=True)
class Asked(factories.Scripted):
    """A script of who is asked; of those, all that are free go to work."""

    def answering(self, sampled: Ints, seed: int, round_: int) -> Ints:
        return np.intersect1d(sampled, np.array(self.cohorts[round_], dtype=np.int64))


@dataclass(frozen=True)
class Clocked(Asked):
    """The same, on a clock."""

    speeds: float | None = SPREAD
    deadline: float | None = None
    staleness: int | None = None
    has_clock: bool = True


def clock(deadline: float, staleness: int) -> Clock:
    """Steps over speeds that are spread log-normally; the median client needs 1."""
    steps = np.array([len(visited(k, 0)) for k in EVERYBODY])
    seconds = steps / np.exp(SPREAD * generator(SEED, Purpose.SPEED).normal(size=len(steps)))
    return Clock((seconds / np.median(seconds)).tolist(), deadline, staleness)


def clocked(simulated: Rounds, deadline: float, staleness: int) -> Rounds:
    """The engine with a clock."""
    options: Any = Clocked(ASKED, deadline=deadline, staleness=staleness)
    samples = np.array(factories.SIZES)
    turns = Turns(options, None, simulated.trainer.population, samples, lambda: COUNTS, SEED)
    return replace(simulated, participation=options, turns=turns)


@cache
def buffered(case: int) -> BufferedRun:
    options, deadline, staleness = CASES[case]
    run: BufferedRun = transcription(run_fedbuff, cohorts=ASKED, clock=clock(deadline, staleness), **options)
    return run


@STACKED
@pytest.mark.parametrize("case", range(len(CASES)))
def test_fedbuff(case: int, stacked: bool) -> None:
    options, deadline, staleness = CASES[case]
    simulated = clocked(engine(settings_of("fedbuff", options), module(), stacked, ASKED), deadline, staleness)
    states = factories.run_rounds(simulated, len(ASKED))
    run = buffered(case)
    assert_models(states, run.models)
    for (_, record), ages in zip(states, run.ages, strict=True):
        assert (record.clients or ()) == tuple(ages)
        if ages:
            assert record.extra["staleness"] == pytest.approx(np.mean(list(ages.values())))


def test_the_clock_makes_answers_of_many_ages_and_leaves_some_out() -> None:
    ages = [age for answers in buffered(0).ages for age in answers.values()]
    assert set(ages) == {0, 1, 3}
    assert any(len(set(answers.values())) > 1 for answers in buffered(0).ages)
    assert max(clock(0.7, 1).late(k) for k in EVERYBODY) > 1
    assert not any(age for answers in buffered(5).ages for age in answers.values())


def test_no_two_cases_have_the_same_outcome() -> None:
    assert_all_different([buffered(case).models[-1] for case in range(len(CASES))])
