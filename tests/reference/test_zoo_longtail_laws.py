"""The formulas of the long-tail methods: gradients are derivatives, limits reduce, weights have their scale."""

from collections.abc import Callable

import numpy as np
import pytest

from .finite_differences import derivative
from .zoo_balancefl import CyclicNoise, covariance_root, feature_covariance
from .zoo_features import class_gradient, contrast, matching, mean_gradients
from .zoo_grab import GradientBalancer, balance, estimated_share, gate_probabilities, groups
from .zoo_losses import (
    Labels,
    Vector,
    balanced_law,
    balancefl_parts,
    class_weights,
    clip2fl_client,
    clip_distillation,
    clip_logits,
    cross_entropy,
    deferred_weights,
    entropy,
    focal,
    ldam,
    ldam_margins,
    log_softmax,
    over_length,
    perturb_probability,
    prior_ce,
    prior_of,
    sigmoid_ce,
    soft_cross_entropy,
    through_length,
)

CLASSES = 5
COUNTS = np.array([40, 20, 7, 2, 0])


def sample(seed: int = 0, n: int = 7) -> tuple[Vector, Vector, Labels]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, CLASSES)), rng.normal(size=(n, CLASSES)), rng.integers(0, 3, size=n)


def losses(teacher: Vector) -> dict[str, Callable[[Vector, Labels], tuple[float, Vector]]]:
    weights = class_weights(COUNTS, "effective")
    return {
        "ce": cross_entropy,
        "weighted": lambda z, y: cross_entropy(z, y, weights),
        "weighted by n": lambda z, y: cross_entropy(z, y, weights, "samples"),
        "focal 0": lambda z, y: focal(z, y, 0.0),
        "focal 0.5": lambda z, y: focal(z, y, 0.5),
        "focal 2": lambda z, y: focal(z, y, 2.0),
        "ldam": lambda z, y: ldam(z, y, ldam_margins(COUNTS), 3.0, weights),
        "prior": lambda z, y: prior_ce(z, y, prior_of(COUNTS)),
        "soft": lambda z, y: soft_cross_entropy(z, teacher, 2.0),
        "entropy": lambda z, y: entropy(z),
        "entropy mean": lambda z, y: entropy(z, "mean"),
        "clip": lambda z, y: clip_distillation(z, teacher),
        "clip2fl": lambda z, y: clip2fl_client(z, y, teacher, 0.7, 2.0),
        "sigmoid": sigmoid_ce,
    }


@pytest.mark.parametrize("name", list(losses(np.zeros((1, 1)))))
def test_a_loss_comes_with_its_derivative(name: str) -> None:
    z, teacher, y = sample()
    loss = losses(teacher)[name]
    np.testing.assert_allclose(loss(z, y)[1], derivative(lambda v: loss(v, y)[0], z), atol=1e-8)


@pytest.mark.parametrize("present", [None, np.arange(4), np.arange(CLASSES)])
def test_balancefl_comes_with_both_derivatives(present: Labels | None) -> None:
    z, teacher, y = sample()
    noisy = sample(1)[0]
    _, d_noisy, d_plain = balancefl_parts(noisy, z, teacher, y, present=present)
    value = lambda a, b: balancefl_parts(a, b, teacher, y, present=present)[0]  # noqa: E731
    np.testing.assert_allclose(d_noisy, derivative(lambda v: value(v, z), noisy), atol=1e-8)  # type: ignore[arg-type]
    np.testing.assert_allclose(d_plain, derivative(lambda v: value(noisy, v), z), atol=1e-8)  # type: ignore[arg-type]


def same(a: tuple[float, Vector], b: tuple[float, Vector]) -> None:
    assert a[0] == pytest.approx(b[0], abs=1e-12)
    np.testing.assert_allclose(a[1], b[1], atol=1e-12)


def test_losses_reduce_to_cross_entropy() -> None:
    z, teacher, y = sample()
    plain = cross_entropy(z, y)
    same(focal(z, y, 0.0), plain)
    same(prior_ce(z, y, np.full(CLASSES, 0.2)), plain)
    same(ldam(z, y, np.zeros(CLASSES), 1.0), plain)
    same(cross_entropy(z, y, np.full(CLASSES, 3.0)), plain)
    same(clip2fl_client(z, y, teacher, 0.0), plain)
    value, d_noisy, d_plain = balancefl_parts(z, z, teacher, y, 0.0, 2.0, 0.0, present=np.arange(CLASSES))
    same((value, d_noisy + d_plain), plain)


def test_a_student_equal_to_its_teacher_is_at_rest() -> None:
    z, teacher, y = sample()
    same(clip_distillation(teacher, teacher), (0.0, np.zeros_like(z)))
    parts = balancefl_parts(z, teacher, teacher, y, 1.0, 2.0, 0.0)
    np.testing.assert_allclose(parts[2], 0.0, atol=1e-15)


def test_absent_classes_keep_a_finite_shift() -> None:
    z, _, y = sample()
    value, gradient = prior_ce(z, y, prior_of(COUNTS))
    assert np.isfinite(value)
    assert np.abs(gradient[:, 4]).max() < 1e-7
    moved = z + np.log(prior_of(COUNTS) + 1e-9)
    assert moved[0, 4] - z[0, 4] == pytest.approx(-20.723, abs=1e-3)


def test_logits_over_a_length_come_with_their_derivatives() -> None:
    z, d, _ = sample()
    f = np.random.default_rng(2).normal(size=(len(z), 3))
    d_z, d_f = through_length(d, z, f)
    np.testing.assert_allclose(d_z, derivative(lambda v: float((d * over_length(v, f)).sum()), z), atol=1e-8)
    np.testing.assert_allclose(d_f, derivative(lambda v: float((d * over_length(z, v)).sum()), f), atol=1e-8)


def test_rarer_classes_weigh_more_and_have_wider_margins() -> None:
    for kind in ("inverse", "effective"):
        w = class_weights(COUNTS, kind)
        assert w.mean() == pytest.approx(1.0)
        assert np.all(np.diff(w) > 0)
        assert class_weights(COUNTS, kind, normalise="present", absent="zero")[:4].mean() == pytest.approx(1.0)
    np.testing.assert_allclose(class_weights(COUNTS, "effective", beta=0.0), 1.0)
    margins = ldam_margins(COUNTS)
    assert margins.max() == margins[4] == 0.5
    assert margins[0] == pytest.approx(0.5 * 40**-0.25)


def test_deferred_weights_start_at_their_round() -> None:
    np.testing.assert_array_equal(deferred_weights(COUNTS, 3, 4), 1.0)
    np.testing.assert_array_equal(deferred_weights(COUNTS, 4, 4), class_weights(COUNTS, "effective"))


def test_the_balanced_sampler_draws_each_class_equally() -> None:
    y = np.repeat([0, 1, 3], [8, 3, 1])
    law = balanced_law(y)
    np.testing.assert_allclose([law[y == c].sum() for c in (0, 1, 3)], 1 / 3)
    np.testing.assert_allclose(perturb_probability(COUNTS), [0, 0.5, 0.825, 0.95, 1])


def test_zero_shot_logits_are_scaled_cosines() -> None:
    a, b = np.array([[3.0, 0.0]]), np.array([[0.0, 2.0], [5.0, 0.0], [1.0, 1.0]])
    np.testing.assert_allclose(clip_logits(a, b), [[0.0, 100.0, 100 / np.sqrt(2)]], atol=1e-12)


def test_the_balancer_starts_even_and_then_lifts_starved_positives() -> None:
    z, _, y = sample()
    state = GradientBalancer(CLASSES)
    np.testing.assert_array_equal(state.gradient(z, y), sigmoid_ce(z, y)[1])
    assert balance(np.zeros(1))[0] == pytest.approx(1.0)
    diff = state.pos - state.neg
    second = state.gradient(z, y)
    u = -diff * (10 + 0.01 + 0.1)  # the first error comes after two of 0
    np.testing.assert_allclose(state.u, u)
    picked = np.eye(CLASSES)[y] == 1
    np.testing.assert_allclose(second, sigmoid_ce(z, y)[1] * np.where(picked, balance(u), balance(-u)))


def test_the_third_step_of_a_controller_knows_two_errors() -> None:
    z, _, y = sample()
    state = GradientBalancer(CLASSES)
    errors = [np.zeros(CLASSES), np.zeros(CLASSES), np.zeros(CLASSES)]
    u = np.zeros(CLASSES)
    for _ in range(4):
        e2, e1, e = errors[-2], errors[-1], state.neg - state.pos
        u = u + 10 * (e - e1) + 0.01 * e + 0.1 * (e - 2 * e1 + e2)
        errors.append(e)
        state.gradient(z, y)
        np.testing.assert_allclose(state.u, u)


def test_closed_and_gated_classes_keep_weight_one() -> None:
    z, _, y = sample()
    plain = sigmoid_ce(z, y)[1]
    opened = np.arange(CLASSES) >= 3
    state = GradientBalancer(CLASSES)
    for _ in range(3):
        g = state.gradient(z, y, opened, gated=[4])
    np.testing.assert_array_equal(g[:, [0, 1, 2, 4]], plain[:, [0, 1, 2, 4]])
    assert np.abs(g[:, 3] - plain[:, 3]).max() > 1e-3
    assert state.neg[4] == 0 < state.neg[0]
    other = GradientBalancer(CLASSES, closed="ignored")
    other.gradient(z, y, opened, gated=[4])
    assert np.flatnonzero(other.neg).tolist() == [3]
    state.closed = "reset"
    state.gradient(z, y, opened)
    assert np.flatnonzero(state.neg).tolist() == [3, 4]
    assert np.flatnonzero(state.u).tolist() == [3]
    assert gate_probabilities(4)[[0, -1]] == pytest.approx([1.0, 0.1])


def test_the_analyser_orders_classes_by_norm() -> None:
    weight = np.diag([5.0, 1.0, 4.0, 2.0, 3.0])
    share = estimated_share(weight)
    np.testing.assert_allclose(share, [0.4, 0.0, 0.3, 0.1, 0.2])
    assert groups(share) == [[0, 2, 4], [3], [1]]
    assert groups(share, crossing="later") == [[0, 2], [4], [3, 1]]
    np.testing.assert_array_equal(estimated_share(np.eye(4)), 0.25)


def test_the_covariance_of_single_samples_is_zero() -> None:
    f = np.random.default_rng(0).normal(size=(6, 3))
    np.testing.assert_array_equal(feature_covariance(f, np.arange(6)), 0.0)
    np.testing.assert_allclose(feature_covariance(f, np.zeros(6, dtype=np.int64)), np.cov(f.T))


def test_the_root_of_the_covariance_squares_to_it() -> None:
    rng = np.random.default_rng(0)
    f, y = rng.normal(size=(9, 3)), np.array([0, 1, 1, 0, 2, 0, 1, 0, 0])
    root = covariance_root(f, y)
    np.testing.assert_allclose(root.T @ root, feature_covariance(f, y), atol=1e-14)


def test_cyclic_noise_deals_its_rows_in_order() -> None:
    who = np.array([True, False, True])
    taken: dict[str, list[float]] = {}
    for wrap in ("restart", "modulo"):
        noise = CyclicNoise(lambda k, r, sigma, size: np.arange(5.0)[:, None], size=5, wrap=wrap)
        taken[wrap] = [float(v) for b in range(3) for v in noise(0, 0, b, np.eye(1), who)[who, 0]]
    assert taken == {"restart": [0, 1, 2, 3, 0, 1], "modulo": [0, 1, 2, 3, 4, 0]}


def test_matching_comes_with_its_derivative() -> None:
    rng = np.random.default_rng(5)
    head, real = rng.normal(size=(2, CLASSES * 4))
    f = rng.normal(size=(6, 3))
    for bias in (True, False):
        slope = matching(head, f, 2, real, CLASSES, bias=bias)[1]
        value = lambda v, bias=bias: matching(head, v, 2, real, CLASSES, bias=bias)[0]  # noqa: E731
        np.testing.assert_allclose(slope, derivative(value, f), atol=1e-7)
    own = class_gradient(head, [f], 2, CLASSES)
    assert matching(head, f, 2, own, CLASSES, eps=0.0)[0] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    "options", [{}, {"unit": True}, {"exclude_self": True}, {"unit": True, "exclude_self": True}]
)
def test_contrast_comes_with_its_derivative_and_is_its_definition(options: dict[str, bool]) -> None:
    rng = np.random.default_rng(6)
    f, text = rng.normal(size=(3, 4, 2)), rng.normal(size=(3, 2))
    value, slope = contrast(f, text, 0.5, **options)
    np.testing.assert_allclose(slope, derivative(lambda v: contrast(v, text, 0.5, **options)[0], f), atol=1e-7)
    rows, keys, y = f.reshape(12, 2), np.repeat(text, 4, axis=0), np.repeat(np.arange(3), 4)
    if options.get("unit"):
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    total = 0.0
    for i in range(12):
        kept = [j for j in range(12) if not (options.get("exclude_self") and i == j)]
        log_p = log_softmax((rows[i] @ keys[kept].T)[None] / 0.5)[0]
        total -= float(np.mean(log_p[y[kept] == y[i]])) / 12
    assert value == pytest.approx(total)


def test_class_gradients_are_averaged_over_those_who_have_the_class() -> None:
    uploads = [{0: (1, np.array([1.0])), 1: (2, np.array([5.0]))}, {0: (3, np.array([3.0]))}]
    assert mean_gradients(uploads, "clients") == {0: 2.0, 1: 5.0}
    assert mean_gradients(uploads, "samples") == {0: 2.5, 1: 5.0}
