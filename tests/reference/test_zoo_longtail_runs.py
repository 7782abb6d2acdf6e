"""The long-tail methods and FedWMSAM, round by round: without what is theirs, they are what they build on."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from .finite_differences import derivative
from .zoo_balancefl import BalanceFL
from .zoo_features import FeatureServer, class_gradient, matching
from .zoo_longtail import Tail, run_balancefl, run_clip2fl, run_creff, run_fedgrab
from .zoo_losses import Labels, Vector, balancefl_parts, cross_entropy, perturb_probability, sigmoid_ce
from .zoo_shared import sharpness_aware
from .zoo_two_layer import Batch, TwoLayer
from .zoo_variance import run_client_momentum, run_scaffold
from .zoo_wmsam import Schedule, run_fedwmsam

CLASSES = 5
NET = TwoLayer(4, 3, CLASSES)


def problem(seed: int = 0) -> tuple[Vector, list[tuple[Vector, Labels]], Any]:
    """A model, three clients, and their batches."""
    rng = np.random.default_rng(seed)
    sizes = (12, 9, 6)
    labels = [np.concatenate([np.arange(CLASSES), rng.integers(0, 2, n - CLASSES)]) for n in sizes]
    made = [(rng.normal(size=(len(y), 4)), y) for y in labels]
    batches: Any = {
        (k, r): [rng.permutation(n)[:4] for _ in range(3)] for k, n in enumerate(sizes) for r in range(3)
    }
    return 0.5 * rng.normal(size=NET.size), made, lambda k, r: batches[k, r]


COHORTS: list[list[int]] = [[0, 2], [], [1, 2]]


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_the_network_comes_with_its_derivative(activation: str) -> None:
    net = TwoLayer(4, 3, CLASSES, activation)
    x, data, _ = problem()
    inputs, labels = data[0]
    shift = np.random.default_rng(3).normal(size=(len(labels), 3))
    other = np.random.default_rng(4).normal(size=(len(labels), CLASSES))

    def value(v: Vector) -> float:
        noisy = net.classify(net.head(v), net.features(v, inputs) + shift)
        return cross_entropy(net.logits(v, inputs), labels)[0] + float((other * noisy).sum())

    d = cross_entropy(net.logits(x, inputs), labels)[1]
    np.testing.assert_allclose(net.backward(x, inputs, d, shift, other), derivative(value, x), atol=1e-7)


def no_noise(k: int, r: int, b: int, sigma: Vector, who: Any) -> Vector:
    return np.zeros((len(who), len(sigma)))


def draws(k: int, r: int, b: int, n: int) -> Vector:
    return np.random.default_rng([k, r, b]).random(n)


def local(batches: Any) -> dict[str, Any]:
    return {"batches": batches, "local_lr": 0.3, "lr_decay": 0.9}


def fedavg(by_logits: Callable[[Vector, Labels], Vector], x: Vector, data: Any, batches: Any) -> list[Vector]:
    models = []
    for r, cohort in enumerate(COHORTS):
        ends, weights = [], []
        for k in cohort:
            y = x.copy()
            for at in batches(k, r):
                a, labels = data[k][0][at], data[k][1][at]
                y = y - 0.3 * 0.9**r * NET.backward(y, a, by_logits(NET.logits(y, a), labels))
            ends.append(y)
            weights.append(len(data[k][1]))
        x = np.average(ends, axis=0, weights=weights) if cohort else x
        models.append(x)
    return models


def test_balancefl_without_its_parts_is_fedavg() -> None:
    x, data, batches = problem()
    method = BalanceFL(draws, no_noise, present="client", lam=0.0, entropy_weight=0.0)
    models = run_balancefl(x, NET, data, (12, 9, 6), COHORTS, method=method, **local(batches))
    plain = fedavg(lambda z, y: cross_entropy(z, y)[1], x, data, batches)
    np.testing.assert_allclose(models, plain, atol=1e-12)


def test_the_gradient_of_balancefl_is_the_derivative_of_its_loss() -> None:
    x, data, _ = problem()
    rng = np.random.default_rng(8)
    rows, teacher = rng.normal(size=(12, 3)), rng.normal(size=NET.size)
    at = np.array([0, 2, 3, 4, 2])
    inputs, labels = data[0][0][at], data[0][1][at]
    who = draws(0, 1, 5, len(at)) < perturb_probability(np.bincount(data[0][1]))[labels]
    assert 0 < who.sum() < len(at)
    batch = Batch(5, at, inputs, labels)
    method = BalanceFL(draws, lambda k, r, b, sigma, who: rows[: len(who)], logit_scale=2.0)
    g = method.step(NET, 0, 1, teacher, data[0])(batch, x)

    def value(v: Vector) -> float:
        f = NET.features(v, inputs)
        noisy = 2 * NET.classify(NET.head(v), f + who[:, None] * rows[: len(at)])
        return balancefl_parts(noisy, 2 * NET.classify(NET.head(v), f), 2 * NET.logits(teacher, inputs), labels)[0]

    np.testing.assert_allclose(g, derivative(value, x), atol=1e-7)


def test_fedgrab_without_a_tail_is_fedavg_on_binary_losses() -> None:
    x, data, batches = problem()
    plain = fedavg(lambda z, y: sigmoid_ce(z, y)[1], x, data, batches)
    run = lambda **options: run_fedgrab(x, NET, data, (12, 9, 6), COHORTS, **options, **local(batches))  # noqa: E731
    np.testing.assert_allclose(run(tail=Tail(first="none", cuts=(0.5, 1.5))), plain, atol=1e-12)  # type: ignore[arg-type]
    gated = run(tail=Tail("all"), gate=lambda k, r, b, tail: tail)
    np.testing.assert_allclose(gated, plain, atol=1e-12)
    assert np.abs(run()[0] - plain[0]).max() > 1e-4
    frozen = run(train_head=False)
    np.testing.assert_array_equal(NET.head(frozen[-1]), NET.head(x))


def feature_server(**options: Any) -> FeatureServer:
    rng = np.random.default_rng(7)
    start = rng.normal(size=CLASSES * 4)
    order = [rng.permutation(CLASSES * 4)[:8] for _ in range(20)]
    settings = {"match_steps": 15, "retrain_lr": 0.2} | options
    return FeatureServer(rng.normal(size=(CLASSES, 4, 3)), lambda r, head: start, lambda r: order, **settings)


def test_creff_trains_as_fedavg_and_keeps_its_head_in_an_empty_round() -> None:
    x, data, batches = problem()
    models, heads = run_creff(x, NET, data, (12, 9, 6), COHORTS, server=feature_server(), **local(batches))
    np.testing.assert_allclose(models, fedavg(lambda z, y: cross_entropy(z, y)[1], x, data, batches), atol=1e-12)
    assert len(heads) == len(COHORTS)
    np.testing.assert_array_equal(heads[0], heads[1])
    assert np.abs(heads[1] - heads[2]).max() > 1e-6


def test_creff_matches_with_the_retrained_head_and_keeps_its_features() -> None:
    x, data, batches = problem()
    server = feature_server()
    models, heads = run_creff(x, NET, data, (12, 9, 6), COHORTS, server=server, **local(batches))
    features, head = server.features0, NET.head(x)
    for cohort, r, before in (([0, 2], 0, x), ([1, 2], 2, models[1])):
        real = {}
        for c in range(CLASSES):
            own = [NET.features(before, data[k][0][data[k][1] == c]) for k in cohort]
            real[c] = np.mean([class_gradient(head, [f], c, CLASSES) for f in own], axis=0)
        features = server.match(features, head, real, None)
        head = server.retrained(r, features, head)
        np.testing.assert_allclose(heads[r], head, atol=1e-12)


def test_matching_brings_the_features_nearer_to_the_real_gradients() -> None:
    x, data, _ = problem()
    server, head = feature_server(match_steps=60), NET.head(x)
    f = NET.features(x, data[0][0])
    real = {c: class_gradient(head, [f[data[0][1] == c]], c, CLASSES) for c in range(CLASSES)}
    after = server.match(server.features0, head, real, None)

    def far(features: Vector) -> float:
        return sum(matching(head, features[c], c, g, CLASSES)[0] for c, g in real.items())

    assert far(after) < 0.8 * far(server.features0)


def test_clip2fl_without_its_terms_is_creff() -> None:
    x, data, batches = problem()
    rng = np.random.default_rng(9)
    args = (x, NET, data, (12, 9, 6), COHORTS)
    clip: Any = {
        "teacher": [rng.normal(size=(len(y), CLASSES)) for _, y in data],
        "text": rng.normal(size=(CLASSES, 3)),
    }
    plain = run_creff(*args, server=feature_server(), **local(batches))
    off = run_clip2fl(*args, server=feature_server(), alpha=0.0, contrast_weight=0.0, **clip, **local(batches))  # type: ignore[misc]
    on = run_clip2fl(*args, server=feature_server(), **clip, **local(batches))  # type: ignore[misc]
    for a, b, c in zip(plain, off, on, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
        assert np.abs(a[-1] - c[-1]).max() > 1e-5


def quadratic(k: int, r: int, b: int, y: Vector) -> Vector:
    return np.asarray((1.0 + k) * (y - k) + 0.1 * np.sin(3 * y + b + r))


FLAT: Any = {"local_lr": 0.1, "lr_decay": 0.95, "epochs": 2, "batch_size": 5}
STILL = Schedule(rate=0.0)


def test_fedwmsam_of_one_client_without_perturbation_is_client_momentum() -> None:
    args = (np.ones(3), quadratic, [12], [[0]] * 4)
    ours = run_fedwmsam(*args, rho=0.0, alpha=0.3, schedule=STILL, **FLAT)
    np.testing.assert_allclose(ours, run_client_momentum(*args, alpha=0.3, **FLAT), atol=1e-12)


def test_fedwmsam_with_little_momentum_is_scaffold() -> None:
    args = (np.ones(3), quadratic, [12, 7, 20], [[0, 1], [2, 1], [0, 2]])
    ours = run_fedwmsam(*args, rho=0.0, alpha=1 - 1e-9, schedule=STILL, **FLAT)
    np.testing.assert_allclose(ours, run_scaffold(*args, **FLAT), atol=1e-6)


def test_fedwmsam_perturbs_neither_a_first_step_nor_as_its_own_gradient_does() -> None:
    args = (np.ones(3), quadratic, [5, 5], [[0, 1]])
    once: Any = FLAT | {"epochs": 1}
    np.testing.assert_allclose(run_fedwmsam(*args, rho=0.5, **once), run_fedwmsam(*args, rho=0.0, **once))
    twice = run_fedwmsam(*args, rho=0.5, schedule=STILL, **FLAT)[0]
    own = run_client_momentum(np.ones(3), sharpness_aware(quadratic, 0.5), *args[2:], alpha=0.1, **FLAT)[0]
    assert np.abs(twice - own).max() > 1e-4


def test_alpha_falls_where_moves_agree_and_rises_where_they_fight() -> None:
    m, schedule = np.array([1.0, 0.0]), Schedule()
    assert schedule.after(0.5, {0: -m}, m) == pytest.approx(0.99 * 0.5 + 0.01 * 0.1)
    assert schedule.after(0.5, {0: m}, m) == pytest.approx(0.99 * 0.5 + 0.01 * 0.9)
    assert schedule.after(0.5, {0: m, 1: -m}, m) == pytest.approx(0.99 * 0.5 + 0.01 * 0.9)
    assert Schedule(clip="each").after(0.5, {0: m, 1: -m}, m) == pytest.approx(0.99 * 0.5 + 0.01 * 0.5)
    fresh = Schedule()
    run_fedwmsam(np.ones(3), quadratic, [12, 7], [[0], [], [0, 1]], rho=0.1, schedule=fresh, **FLAT)
    assert fresh.trace[0] == pytest.approx(0.1)  # there is no momentum to agree with yet
    assert len(fresh.trace) == 2
