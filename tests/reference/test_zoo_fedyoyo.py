"""The engine runs FedYoYo as its formulas say, round by round: models, losses and effective class sizes."""

from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwcm.core.rng import Purpose, generator

from .finite_differences import derivative
from .longtail_rounds import (
    CLOSE,
    COHORTS,
    SEED,
    STACKED,
    Settings,
    assert_all_different,
    assert_models,
    played,
    settings_of,
    transcription,
)
from .zoo_fedyoyo import YoYoLoss, YoYoRun, effective_sizes, run_fedyoyo, two_views

PLAIN: Settings = {"method.name": "fedavg", "loss.name": "fedyoyo"}
CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"group": 5, "memory": 0.3, "server_lr": 0.6}, {"tau": 0.8, "gamma": 0.4, "warmup": 3, "hole": 0.7}),
    ({"group": 2, "memory": 0.0}, {"tau": 0.5, "gamma": 1.0, "distill": 2.0, "temperature": 3.0, "warmup": 0}),
    ({"average": "uniform"}, {"tau": 0.0, "temperature": 0.7, "warmup": 2, "hole": 0.3}),
    ({"memory": 0.5}, {"gamma": 0.0, "distill": 0.0, "hole": 1.0}),
]
"""The method's and the loss's options."""
PLAIN_CASES: list[dict[str, Any]] = [{"warmup": 4}, {"tau": 0.4, "gamma": 1.0, "warmup": 0, "hole": 0.8}]
"""The loss's options, with FedAvg."""


def blanked(client: int, round_: int, step: int, shape: tuple[int, ...], hole: float) -> NDArray[np.bool_]:
    return generator(SEED, Purpose.VIEWS, round_, client, step).random(shape) < hole**2


def transcribed(method: dict[str, Any], loss: dict[str, Any], **more: Any) -> YoYoRun:
    own = dict(loss)
    blank = partial(blanked, hole=own.pop("hole", 0.5))
    run: YoYoRun = transcription(run_fedyoyo, blank=blank, loss=YoYoLoss(**own), **method, **more)
    return run


@cache
def measured(case: int) -> YoYoRun:
    return transcribed(*CASES[case])


@cache
def gathered(case: int) -> YoYoRun:
    return transcribed({}, PLAIN_CASES[case], measured=False)


def assert_run(settings: Settings, run: YoYoRun, stacked: bool) -> None:
    states = played(settings, stacked)
    assert_models(states, run.models)
    losses = [record.train_loss for _, record in states if record.train_loss is not None]
    np.testing.assert_allclose(losses, run.losses, **CLOSE)
    if settings["method.name"] == "fedyoyo":
        sizes = [state.method["effective"].numpy() for (state, _), who in zip(states, COHORTS, strict=True) if who]
        np.testing.assert_allclose(sizes, run.sizes, **CLOSE)


@STACKED
@pytest.mark.parametrize("case", range(len(CASES)))
def test_fedyoyo(case: int, stacked: bool) -> None:
    assert_run(settings_of("fedyoyo", *CASES[case]), measured(case), stacked)


@STACKED
@pytest.mark.parametrize("case", range(len(PLAIN_CASES)))
def test_its_loss_with_fedavg(case: int, stacked: bool) -> None:
    own = {f"loss.{key}": value for key, value in PLAIN_CASES[case].items()}
    assert_run({**PLAIN, **own}, gathered(case), stacked)


def test_the_written_gradients_of_the_loss_are_its_slopes() -> None:
    """By the weak view, those of the cross-entropy alone: what it teaches is held fixed."""
    rng, y = np.random.default_rng(2), np.array([0, 1, 2, 0, 3])
    weak, strong = rng.normal(size=(2, 5, 4)) + 0.5 * np.eye(4)[y]
    right = (weak.argmax(axis=1) == y).sum()
    assert 0 < right < 5
    (_, d_weak), d_strong = two_views(weak, strong, y, 3.0, 1.7)
    slopes = (
        derivative(lambda u: two_views(u, strong, y, 0.0, 1.7)[0][0], weak),
        derivative(lambda u: two_views(weak, u, y, 3.0, 1.7)[0][0], strong),
    )
    for written, slope in zip((d_weak, d_strong), slopes, strict=True):
        np.testing.assert_allclose(written, slope, rtol=1e-6, atol=1e-8)


def test_samples_that_point_the_same_way_count_once() -> None:
    towards, labels = np.array([[1.0, 0.0]] * 4 + [[-4.0, 0.0]]), np.zeros(5, dtype=np.int64)
    np.testing.assert_allclose(effective_sizes(towards, labels, 2, 5), [25 / 9, 0.0])  # the mean is 3/5 long
    np.testing.assert_allclose(effective_sizes(towards, labels, 2, 4), [2.0, 0.0])  # four as one, and one alone


def test_no_two_cases_have_the_same_outcome() -> None:
    runs = [measured(case) for case in range(len(CASES))] + [gathered(case) for case in range(len(PLAIN_CASES))]
    assert_all_different([run.models[-1] for run in runs])
