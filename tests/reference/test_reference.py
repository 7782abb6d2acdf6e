"""Laws of the reference alone, so that a test that fails against it points at the package."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike, NDArray

from .algorithm_boxes import Gradient, Vector, run_reference
from .softmax_regression import loss_gradient

DIM = 6
SETTING = {"local_lr": 0.05, "epochs": 2, "batch_size": 10}
BALANCED = np.array([[10, 10, 10], [25, 5, 0], [0, 20, 10], [5, 5, 20]])
LONG_TAILED = np.array([[60, 3, 1], [20, 12, 0], [31, 0, 4], [9, 5, 8], [80, 0, 0]])
COHORTS = [[0, 2], [3, 1, 2], [2], [0, 1, 2, 3]]


def quadratic(client: int, r: int, step: int, w: Vector) -> Vector:
    """A noisy pull to the client's own centre; the noise depends on (client, round, step) alone."""
    noise = np.random.default_rng([client, r, step]).normal(size=w.size)
    return w - (1.0 + client) + 0.1 * noise


def still(client: int, r: int, step: int, w: Vector) -> Vector:
    return np.zeros_like(w)


def kick(client: int, r: int, step: int, w: Vector) -> Vector:
    """One push in round 0, so that later rounds show the momentum alone."""
    return np.full_like(w, 1.0 if r == 0 else 0.0)


def run(gradient: Gradient, counts: ArrayLike, cohorts: list[list[int]], **options: Any) -> list[dict[str, Any]]:
    return run_reference(np.linspace(-1, 1, DIM), gradient, counts, cohorts, **{**SETTING, **options})


def cifar10_classes(imbalance: float) -> list[int]:
    return [int(5000 * imbalance ** (c / 9)) for c in range(10)]


@pytest.mark.parametrize(
    ("counts", "options"),
    [(BALANCED, {"alpha_rule": "discrepancy"}), (np.full_like(BALANCED, 4), {})],
    ids=["balanced data", "balanced clients"],
)
def test_balance_makes_fedwcm_equal_fedcm_exactly(counts: NDArray[np.int64], options: dict[str, Any]) -> None:
    fedwcm = run(quadratic, counts, COHORTS, method="fedwcm", **options)
    fedcm = run(quadratic, counts, COHORTS, method="fedcm")
    for ours, theirs in zip(fedwcm, fedcm, strict=True):
        assert ours["alpha_next"] == 0.1
        np.testing.assert_array_equal(ours["weights"], theirs["weights"])
        np.testing.assert_array_equal(ours["x"], theirs["x"])


def test_long_tailed_data_makes_fedwcm_differ_from_fedcm_in_round_0() -> None:
    fedwcm, fedcm = (run(quadratic, LONG_TAILED, COHORTS, method=m)[0]["x"] for m in ("fedwcm", "fedcm"))
    assert np.abs(fedwcm - fedcm).max() > 1e-3


def test_fedcm_without_momentum_is_fedavg_for_equal_sizes() -> None:
    fedcm = run(quadratic, BALANCED, COHORTS, method="fedcm", alpha0=1.0)
    fedavg = run(quadratic, BALANCED, COHORTS, method="fedavg")
    for ours, theirs in zip(fedcm, fedavg, strict=True):
        np.testing.assert_allclose(ours["x"], theirs["x"], rtol=1e-14)
        assert ours["gain"] == theirs["gain"] == 0.0


def test_fedwcm_with_both_parts_off_is_fedcm() -> None:
    off = run(quadratic, LONG_TAILED, COHORTS, method="fedwcm", weighting=False, adaptive=False)
    np.testing.assert_array_equal(off[-1]["x"], run(quadratic, LONG_TAILED, COHORTS, method="fedcm")[-1]["x"])


def test_fedwcm_x_is_fedwcm_for_equal_sizes() -> None:
    counts = np.array([[20, 8, 2], [30, 0, 0], [11, 11, 8], [25, 5, 0]])
    plain, x = (run(quadratic, counts, COHORTS, method=m) for m in ("fedwcm", "fedwcm-x"))
    np.testing.assert_allclose(x[-1]["x"], plain[-1]["x"], rtol=1e-12)


def test_fedwcm_x_weights_as_printed_shrink_by_the_cohort_size() -> None:
    cohort = [[0, 1, 3]]
    printed, ours = (
        run(still, LONG_TAILED, cohort, method="fedwcm-x", normalize=n)[0]["weights"] for n in (False, True)
    )
    assert 0.2 < printed.sum() < 0.5
    np.testing.assert_allclose(ours, printed / printed.sum(), rtol=1e-14)
    share = run(still, LONG_TAILED, cohort, method="fedwcm-x", weighting=False)[0]["weights"]
    np.testing.assert_allclose(share, np.array([64, 32, 22]) / 118)


@pytest.mark.parametrize(
    ("size", "gain"), [(600, 0.900), (434, 0.933), (204, 1.103), (148, 0.912), (362, 0.994), (178, 1.011)]
)
def test_nominal_gain_of_equal_clients_is_the_ceiling_over_the_fraction(size: int, gain: float) -> None:
    options = {"method": "fedcm", "momentum_norm": "nominal", "epochs": 5, "batch_size": 50}
    assert run(still, np.full((3, 2), size // 2), [[0, 2]], **options)[0]["gain"] == pytest.approx(gain, abs=6e-4)


@pytest.mark.parametrize("method", ["fedcm", "fedwcm", "fedwcm-x"])
@pytest.mark.parametrize("norm", ["exact", "nominal"])
def test_the_reported_gain_is_what_momentum_is_multiplied_by(method: str, norm: str) -> None:
    history = run(kick, LONG_TAILED, COHORTS, method=method, momentum_norm=norm, lr_decay=0.9, q="off")
    for before, after in pairwise(history):
        np.testing.assert_allclose(after["momentum"], after["gain"] * before["momentum"], rtol=1e-12)
        if norm == "exact":
            assert after["gain"] == pytest.approx(1 - after["alpha_used"], rel=1e-12)


def test_a_constant_gradient_is_recovered_as_momentum_without_staleness() -> None:
    constant = np.arange(DIM, dtype=float)
    done = run(lambda k, r, b, w: constant, LONG_TAILED, [[0, 3]], method="fedcm", alpha0=1.0)[0]
    np.testing.assert_allclose(done["momentum"], constant, rtol=1e-12)
    move = 0.05 * 2 * (7 + 3) / 2 * constant  # lr * E * mean of ceil(64/10) and ceil(22/10)
    np.testing.assert_allclose(np.linspace(-1, 1, DIM) - done["x"], move, rtol=1e-12)


def test_fedwcm_x_moves_every_client_by_the_same_decayed_amount() -> None:
    one = np.ones(DIM)
    options = {"method": "fedwcm-x", "adaptive": False, "alpha0": 1.0, "lr_decay": 0.9, "server_lr": 0.5}
    x = np.linspace(-1, 1, DIM)
    for r, done in enumerate(run(lambda k, r, b, w: one, LONG_TAILED, [[0, 3], [4, 1, 2]], **options)):
        move = 0.05 * 0.9**r * 2 * 5  # lr * E * ceil(46.6 / 10)
        for w in done["local"].values():
            np.testing.assert_allclose(x - w, move, rtol=1e-12)
        np.testing.assert_allclose(x - done["x"], 0.5 * move, rtol=1e-12)
        x = done["x"]


def test_literal_and_average_steps_agree_when_lr_times_steps_is_one() -> None:
    options = {"method": "fedwcm", "local_lr": 1 / 6}  # E * ceil(30 / 10) = 6
    average, literal = (
        run(quadratic, BALANCED, COHORTS, server_step=s, **options)[-1]["x"] for s in ("average", "literal")
    )
    np.testing.assert_allclose(average, literal, rtol=1e-12)


@pytest.mark.parametrize(
    ("imbalance", "alpha"), [(1, 0.1), (0.5, 0.256), (0.1, 0.501), (0.05, 0.565), (0.01, 0.662)]
)
def test_alpha_grows_with_imbalance(imbalance: float, alpha: float) -> None:
    done = run(still, [cifar10_classes(imbalance)], [[0]], batch_size=10_000)[0]
    assert done["alpha_used"] == 0.1
    assert done["alpha_next"] == pytest.approx(alpha, abs=6e-4)


def test_temperature_rule_falls_with_imbalance_and_saturates_on_balanced_data() -> None:
    options = {"alpha_rule": "temperature", "temperature_scale": 1.0}
    alphas = [run(still, c, [[0]], **options)[0]["alpha_next"] for c in ([[5, 5]], [[6, 4]], [[9, 1]])]
    assert alphas[0] == 1 - 1e-6
    assert alphas[1] == pytest.approx(0.1 + 0.9 * (1 - np.exp(-1 / (2 * 0.2) / 2)))
    assert alphas[1] > alphas[2]


def test_q_multiplies_as_printed_divides_when_inverse_and_is_bounded() -> None:
    counts = [[12, 4], [7, 3], [8, 0], [3, 3]]  # p = (3/4, 1/4), so s = (1/4) * (1/4, 3/10, 0, 1/2)

    def raised(q: str, cohort: list[int]) -> float:
        return float(run(still, counts, [cohort], q=q)[0]["alpha_next"]) - 0.1

    base = 0.9 * (1 - np.exp(-(0.5 + 0.4 + 1.0 + 0.0) / 4))
    ratio = 0.25 / ((0.25 + 0.3 + 0.0 + 0.5) / 4)
    assert raised("off", [0]) == pytest.approx(base)
    assert raised("ratio", [0]) == pytest.approx(base * ratio)
    assert raised("inverse", [0]) == pytest.approx(base / ratio)
    assert raised("ratio", [0, 1, 2, 3]) == pytest.approx(base)
    assert raised("ratio", [2]) == 0.0  # nothing scarce in this round
    assert raised("inverse", [2]) == pytest.approx(0.9 - 1e-6)
    rare = [[97, 0], [0, 3]]
    assert run(still, rare, [[1]])[0]["alpha_next"] == 1 - 1e-6


def test_q_is_one_when_the_scarce_classes_are_held_by_nobody() -> None:
    done = run(still, [[5, 5, 0], [4, 4, 0]], [[0]])[0]
    assert done["alpha_next"] == pytest.approx(0.1 + 0.9 * (1 - np.exp(-2 / 3)))


def test_scarcity_prefers_the_tail_and_the_printed_score_the_head() -> None:
    counts = np.diag(cifar10_classes(0.1))
    everyone = [list(range(10))]
    scarcity, absolute = (run(still, counts, everyone, score=s)[0]["weights"] for s in ("scarcity", "absolute"))
    assert scarcity.argmax() == 9
    assert absolute.argmax() == 0
    assert scarcity.sum() == pytest.approx(1)


def test_target_equal_to_the_global_distribution_is_the_balanced_case() -> None:
    target = LONG_TAILED.sum(0) / LONG_TAILED.sum()
    done = run(still, LONG_TAILED, [[0, 3]], target=target, alpha_rule="discrepancy")[0]
    np.testing.assert_array_equal(done["weights"], [0.5, 0.5])
    assert done["alpha_next"] == 0.1


def test_a_round_without_an_answer_keeps_everything() -> None:
    first, empty, after = run(quadratic, LONG_TAILED, [[0, 3], [], [1]])
    for name in ("x", "momentum", "alpha_next"):
        np.testing.assert_array_equal(empty[name], first[name])
    assert empty["weights"].size == 0
    assert after["alpha_used"] == first["alpha_next"]


def test_clipping_bounds_the_mixed_direction_and_decay_comes_after_it() -> None:
    push = np.full(DIM, 100.0)
    options = {
        "method": "fedcm",
        "epochs": 1,
        "batch_size": 100,
        "clip": 0.5,
        "weight_decay": 0.2,
        "alpha0": 0.3,
    }
    x0 = np.linspace(-1, 1, DIM)
    done = run(lambda k, r, b, w: push, [[50, 50]], [[0]], **options)[0]
    expected = x0 - 0.05 * (0.5 * push / np.linalg.norm(push) + 0.2 * x0)
    np.testing.assert_allclose(done["local"][0], expected, rtol=1e-12)


@pytest.mark.parametrize(("field", "value"), [("method", "fedsgd"), ("q", "none"), ("server_step", "mean")])
def test_an_unknown_option_is_refused_by_name(field: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{field} is '{value}'"):
        run(still, BALANCED, [[0]], **{field: value})


def test_softmax_gradient_matches_differences_and_torch() -> None:
    rng = np.random.default_rng(0)
    n, d, classes = 12, 4, 3
    inputs, labels = rng.normal(size=(n, d)), rng.integers(classes, size=n)
    w = rng.normal(size=classes * (d + 1))
    loss, grad = loss_gradient(w, inputs, labels, classes)
    for i, unit in enumerate(np.eye(w.size)):
        up, down = (loss_gradient(w + h * unit, inputs, labels, classes)[0] for h in (1e-6, -1e-6))
        assert grad[i] == pytest.approx((up - down) / 2e-6, abs=1e-8)

    linear = torch.nn.Linear(d, classes, dtype=torch.float64)
    torch.nn.utils.vector_to_parameters(torch.from_numpy(w), linear.parameters())
    value = torch.nn.functional.cross_entropy(linear(torch.from_numpy(inputs)), torch.from_numpy(labels))
    parts = torch.autograd.grad(value, list(linear.parameters()))
    flat = torch.cat([part.ravel() for part in parts]).numpy()
    assert loss == pytest.approx(value.item(), rel=1e-12)
    np.testing.assert_allclose(grad, flat, rtol=1e-10, atol=1e-14)
