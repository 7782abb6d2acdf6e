"""The schedules of the local learning rate, against torch's own and by their laws."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

from fedwcm.config.settings import from_settings
from fedwcm.engine.options import LearningRate
from fedwcm.experiment.build import build
from fedwcm.methods.fedcm import FedCM
from tests.factories import clusters, linear, make_rounds, make_trainer

ROUNDS = 24

SCHEDULES: dict[str, tuple[dict[str, Any], Any]] = {
    "constant": ({}, lambda o: lr_scheduler.ConstantLR(o, 1.0)),
    "exponential": ({"lr_decay": 0.9}, lambda o: lr_scheduler.ExponentialLR(o, 0.9)),
    "step": ({"lr_decay": 0.3, "lr_decay_every": 5}, lambda o: lr_scheduler.StepLR(o, 5, 0.3)),
    "cosine": ({"lr_end": 0.02}, lambda o: lr_scheduler.CosineAnnealingLR(o, ROUNDS, 0.02)),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_equals_that_of_torch(name: str) -> None:
    options, scheduler = SCHEDULES[name]
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    theirs, stepper = [], scheduler(optimizer)
    for _ in range(ROUNDS):
        theirs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        stepper.step()
    rate = LearningRate(lr=0.5, schedule=name, **options)  # type: ignore[arg-type]
    np.testing.assert_allclose([rate.at(r, ROUNDS) for r in range(ROUNDS)], theirs, rtol=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
def test_warm_up_rises_to_the_start_of_the_schedule_and_delays_it(name: str) -> None:
    options, _ = SCHEDULES[name]
    plain = LearningRate(lr=0.5, schedule=name, **options)  # type: ignore[arg-type]
    warm = LearningRate(lr=0.5, schedule=name, warmup=4, **options)  # type: ignore[arg-type]
    rates = [warm.at(r, ROUNDS + 4) for r in range(ROUNDS + 4)]
    np.testing.assert_allclose(rates[:5], [0.1, 0.2, 0.3, 0.4, 0.5])
    assert rates[4:] == [plain.at(r, ROUNDS) for r in range(ROUNDS)]


def test_no_round_has_a_rate_of_zero() -> None:
    assert LearningRate(schedule="cosine").at(ROUNDS - 1, ROUNDS) > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "linear"}, r"local\.schedule: 'linear'.*constant, cosine, exponential, step"),
        ({"lr_decay": 0.9}, r"lr_decay = 0\.9.*none with schedule = 'constant'.*exponential and step"),
        ({"schedule": "cosine", "lr_decay_every": 3}, r"lr_decay_every = 3.*'cosine'.*belongs to step"),
        ({"schedule": "exponential"}, r"schedule = 'exponential'.*given together with lr_decay"),
        ({"schedule": "step", "lr_decay": 0.1}, r"schedule = 'step'.*given together with lr_decay_every"),
        ({"schedule": "exponential", "lr_decay": 1.5}, r"lr_decay = 1\.5.*in \(0, 1\]"),
        ({"schedule": "cosine", "lr_end": 0.2}, r"lr_end = 0\.2.*between 0 and lr = 0\.1"),
        ({"warmup": -1}, r"warmup = -1"),
    ],
)
def test_a_parameter_of_another_schedule_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_settings({f"local.{key}": value for key, value in settings.items()})


def test_the_momentums_gain_is_exact_at_every_rounds_own_rate() -> None:
    data = clusters()
    training = make_trainer(FedCM(alpha=0.25), data.federation, linear())
    rate = LearningRate(lr=0.2, schedule="cosine", warmup=2)
    engine = make_rounds(training, data.federation, learning_rate=rate)
    state = engine.start(*training.forward.network.initial())
    for _ in range(4):
        state, record = engine.step(state)
        assert record.extra["gain"] == pytest.approx(0.75, rel=1e-12)


def test_the_run_trains_at_the_rates_of_its_schedule() -> None:
    local = {"schedule": "step", "lr_decay": 0.5, "lr_decay_every": 2, "warmup": 1, "lr": 0.4}
    settings = {f"local.{key}": value for key, value in local.items()}
    made = build(from_settings({"data.dataset": "digits", "partition.clients": 4, "run.rounds": 6, **settings}))
    assert [made.rounds._lr(r) for r in range(6)] == [0.2, 0.4, 0.4, 0.2, 0.2, 0.1]
