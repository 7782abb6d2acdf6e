"""The clients' optimizers: against torch's own, in blocks, and what methods make of their steps."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedwcm.config.settings import from_settings
from fedwcm.core.batch import InMemoryFederation
from fedwcm.core.method import Method
from fedwcm.engine.options import OptimizerOptions
from fedwcm.engine.step import SGD, MomentumSGD
from fedwcm.experiment.build import build
from fedwcm.methods import METHODS
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.fedcm import FedCM
from fedwcm.methods.fedprox import FedProx
from fedwcm.methods.fedwcm import FedWCMX
from fedwcm.methods.scaffold import SCAFFOLD
from fedwcm.testing import _Flat as Flat

from ..factories import BY_STEPS, ENGINES, Bench, clusters, linear, make_rounds, make_trainer, mlp, run_rounds
from ..specimens import Push, the_long_way

CHOICES: dict[str, dict[str, Any]] = {
    "momentum": {"momentum": 0.9, "weight_decay": 0.1},
    "nesterov": {"momentum": 0.7, "nesterov": True, "weight_decay": 0.1},
    "adam": {"optimizer": "adam", "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1},
}
TORCH: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
STEPS, LR = 7, 0.05


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("name", CHOICES)
def test_an_optimizer_takes_the_steps_of_torch_s_own(name: str, stacked: bool) -> None:
    data, options = clusters(), dict(CHOICES[name])
    bench = Bench(FedAvg(), data, mlp(), lr=LR, epochs=STEPS, batch_size=100, stacked=stacked, **options)
    ours = bench.train()
    theirs = TORCH[options.pop("optimizer", "sgd")]
    for row, client in enumerate(BY_STEPS):
        module, rows = mlp(), data.parts[client]
        before = torch.cat([p.detach().flatten() for p in module.parameters()])
        optimizer = theirs(module.parameters(), lr=LR, **options)
        for _ in range(STEPS):
            optimizer.zero_grad()
            inputs, labels = torch.from_numpy(data.inputs[rows]), torch.from_numpy(data.labels[rows])
            cross_entropy(module(inputs), labels).backward()
            optimizer.step()
        moved = torch.cat([p.detach().flatten() for p in module.parameters()]) - before
        torch.testing.assert_close(ours.upload["delta"][row], moved, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("name", CHOICES)
def test_all_engines_and_both_ways_through_a_step_agree(name: str, clip: float | None) -> None:
    """Clients take unequally many steps: those that are done must stay as they are."""
    data, ends = clusters(), []
    for method, way in [(FedAvg(), e) for e in ENGINES.values()] + [
        (the_long_way(FedAvg)(), ENGINES["sequential"])
    ]:
        training = make_trainer(method, data.federation, mlp(), stacked=way.stacked, clip=clip, **CHOICES[name])
        ends.append(
            run_rounds(make_rounds(training, data.federation, block=way.block, workers=way.workers), 2)[-1][0].x
        )
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], rtol=1e-9, atol=1e-11)


def test_without_momentum_sgd_is_plain_to_the_bit() -> None:
    w, v, lr = torch.randn(3, 40), torch.randn(3, 40), torch.tensor([[0.1], [0.2], [0.3]])
    one, other = w.clone(), w.clone()
    plain, momentum = SGD(OptimizerOptions()), MomentumSGD(OptimizerOptions())
    for _ in range(3):
        plain(one, v, lr)
        momentum(other, v, lr)
    assert torch.equal(one, other)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_a_weight_without_a_gradient_stays_with_fedprox_and_adam(optimizer: str) -> None:
    """Multiplied out, mu·w − mu·x leaves a rounding error, which Adam makes a step of."""
    data = clusters()
    unused = torch.from_numpy(data.inputs).float()
    unused[:, 3] = 0.0
    federation = InMemoryFederation(unused, data.labels, data.parts, 3)
    trainer = make_trainer(FedProx(), federation, nn.Linear(4, 3), optimizer=optimizer)
    start = trainer.forward.network.initial()[0].clone()
    after = run_rounds(make_rounds(trainer, federation, lr=0.01), 2)[-1][0].x
    dead = torch.arange(3) * 4 + 3
    assert torch.equal(after[dead], start[dead])
    assert not torch.equal(after, start)


def test_the_state_starts_anew_in_every_round() -> None:
    data = clusters()
    engine = make_rounds(make_trainer(FedAvg(), data.federation, linear(), momentum=0.9), data.federation)
    state, _ = engine.step(engine.start(*engine.trainer.forward.network.initial()))
    assert torch.equal(engine.step(state)[0].x, engine.step(state)[0].x)


# --- the length of a path ----------------------------------------------------------------------------

MOMENTUM: dict[str, Method] = {
    "fedcm": FedCM(alpha=0.3),
    "fedwcm-x": FedWCMX(adaptive=False, alpha=0.3),
    "fedwcm-x, limited": FedWCMX(adaptive=False, alpha=0.3, rate_limit=1.0),
}
SGD_CHOICES: list[dict[str, Any]] = [{}, {"momentum": 0.6}, {"momentum": 0.6, "nesterov": True}]


@pytest.mark.parametrize("options", SGD_CHOICES)
def test_along_a_constant_direction_the_increment_is_the_path_s_length_times_it(options: dict[str, Any]) -> None:
    data = clusters()
    bench = Bench(Push(), data, linear(), lr=LR, **options)
    steps = bench.trainer.population.local_steps(data.federation.samples[list(BY_STEPS)])
    path = torch.from_numpy(LR * bench.trainer.population.path(steps))
    push = torch.linspace(-1.0, 2.0, len(bench.sent.x), dtype=torch.float64)
    expected = -path[:, None] * push * (1.0 + torch.tensor(BY_STEPS)[:, None])
    moved = bench.train(message={"push": push}).upload["delta"]
    torch.testing.assert_close(moved, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("options", SGD_CHOICES)
@pytest.mark.parametrize("name", sorted(MOMENTUM))
def test_without_gradients_the_momentum_shrinks_by_exactly_its_gain(name: str, options: dict[str, Any]) -> None:
    data = clusters()
    training = make_trainer(MOMENTUM[name], data.federation, linear(), loss=Flat(), **options)
    engine = make_rounds(training, data.federation)
    state = engine.start(*training.forward.network.initial())
    before = torch.randn_like(state.x)
    after, record = engine.step(type(state)(0, state.x, state.buffers, {**state.method, "momentum": before}))
    torch.testing.assert_close(after.method["momentum"], 0.7 * before, rtol=1e-9, atol=1e-12)
    assert record.extra["gain"] == pytest.approx(0.7)


def test_a_limit_only_lowers_the_rates_of_fedwcm_x_and_is_announced_in_its_gain() -> None:
    data = clusters()
    bench = Bench(FedWCMX(rate_limit=1.0), data, linear(), lr=LR)
    known = bench.trainer.population
    steps = known.local_steps(data.federation.samples[list(BY_STEPS)])
    rates = bench.train().learning_rates
    np.testing.assert_allclose(rates, LR * np.minimum(known.reference_steps / steps, 1.0))
    assert rates.min() < LR == rates.max()
    nominal = FedWCMX(rate_limit=1.0, momentum_norm="nominal")
    lengths = rates * steps / (LR * known.nominal_steps)
    samples = data.federation.samples
    expected = (1 - nominal.alpha) * np.average(lengths, weights=samples[list(BY_STEPS)])
    assert nominal.starting_gain(known, samples) == pytest.approx(expected)


@pytest.mark.parametrize("options", SGD_CHOICES)
def test_a_control_variate_is_the_mean_gradient_along_the_path(options: dict[str, Any]) -> None:
    """Where gradients are zero, the next control variate is zero whatever it was."""
    data = clusters()
    bench = Bench(SCAFFOLD(), data, linear(), loss=Flat(), **options)
    result = bench.train(message={"control": torch.randn_like(bench.sent.x)})
    torch.testing.assert_close(
        result.state["control"], torch.zeros_like(result.state["control"]), atol=1e-12, rtol=0
    )


def test_the_announced_gain_of_the_nominal_normaliser_is_that_of_the_first_round() -> None:
    data = clusters()
    training = make_trainer(FedCM(momentum_norm="nominal"), data.federation, linear(), momentum=0.5)
    engine = make_rounds(training, data.federation)
    _, record = engine.step(engine.start(*training.forward.network.initial()))
    assert isinstance(training.method, FedCM)
    assert training.method.starting_gain(training.population, data.federation.samples) == pytest.approx(
        record.extra["gain"]
    )


# --- what is permitted -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "rmsprop"}, r"local\.optimizer: 'rmsprop'.*adam, adamw, sgd"),
        ({"momentum": 1.0}, r"momentum = 1\.0.*in \[0, 1\)"),
        ({"nesterov": True}, r"nesterov = True.*false without momentum"),
        ({"optimizer": "adam", "momentum": 0.9}, r"momentum = 0\.9.*0\.0 with optimizer = 'adam'"),
        ({"betas": [0.5, 0.9]}, r"betas = \(0\.5, 0\.9\).*with optimizer = 'sgd'"),
        ({"optimizer": "adam", "betas": [0.9]}, r"betas = \(0\.9,\).*two numbers in \[0, 1\)"),
    ],
)
def test_an_option_that_does_not_fit_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_settings({f"local.{key}": value for key, value in settings.items()})


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_refuses_what_its_maths_does_not_permit_before_data_is_loaded(name: str) -> None:
    permits = METHODS[name].optimizers.permits
    refused = {"any": [], "momentum": ["adam"], "plain": ["adam", "momentum"]}[permits]
    choices: dict[str, dict[str, object]] = {
        "adam": {"local.optimizer": "adam"},
        "momentum": {"local.momentum": 0.9},
    }
    for choice, settings in choices.items():
        config = from_settings({"method.name": name, "data.dataset": "nowhere.csv", **settings})
        message = rf"local\.(optimizer|momentum) = .* with the method {name}: " if choice in refused else "nowhere"
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            build(config)
