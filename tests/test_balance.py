"""The paper's maths: hand-made values, the tables of the docs, laws, bad input and extremes."""

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from fedwcm.balance import (
    ALPHA_MARGIN,
    adaptive_alpha,
    client_scores,
    client_weights,
    discrepancy,
    limit_shares,
    local_deviations,
    momentum_gain,
    prior_shift,
    temperature,
)

pytestmark = pytest.mark.filterwarnings("error")

Counts = NDArray[np.int64]

# p = (3/4, 1/4), so p̂ − p = (−1/4, 1/4) and D = 1/2.
SKEWED = np.array([[12, 4], [7, 3], [8, 0], [3, 3]])


def exponential(imbalance: float, classes: int = 10, largest: int = 5000) -> Counts:
    """Class sizes of a long tail whose rarest class has `imbalance` times the samples of the first."""
    return (largest * imbalance ** (np.arange(classes) / (classes - 1))).astype(np.int64)


def tables(max_clients: int = 6, max_classes: int = 6) -> st.SearchStrategy[Counts]:
    """Counts in which every client has samples."""
    shapes = st.tuples(st.integers(1, max_clients), st.integers(1, max_classes))
    return shapes.flatmap(lambda shape: arrays(np.int64, shape, elements=st.integers(0, 500))).map(
        lambda table: table + (table.sum(axis=1, keepdims=True) == 0)
    )


# --- discrepancy -------------------------------------------------------------------------------------


def test_discrepancy_is_the_distance_to_the_target() -> None:
    assert discrepancy(SKEWED) == pytest.approx(0.5, rel=1e-14)
    assert discrepancy(SKEWED, [0.75, 0.25]) == 0.0
    assert discrepancy(SKEWED, [0.0, 1.0]) == pytest.approx(1.5, rel=1e-14)


def test_the_rounding_of_balanced_shares_is_not_a_tail() -> None:
    for classes in range(1, 60):
        shares = np.full((1, classes), 1 / classes)  # need not sum to exactly 1
        assert discrepancy(shares) == 0.0
        assert temperature(shares) == float("inf")
        assert client_scores(np.eye(classes), prior=shares[0]).max() == 0.0


@given(tables())
def test_discrepancy_is_in_0_to_2_and_knows_neither_clients_nor_the_order_of_classes(table: Counts) -> None:
    value = discrepancy(table)
    assert 0 <= value < 2
    assert discrepancy(table.sum(axis=0)[None]) == pytest.approx(value, abs=1e-12)
    assert discrepancy(table[:, ::-1]) == pytest.approx(value, abs=1e-12)


# --- scores ------------------------------------------------------------------------------------------


def test_scores_are_the_mean_deviation_of_a_clients_samples() -> None:
    scarcity = np.array([1 / 4, 3 / 10, 0, 1 / 2]) / 4
    np.testing.assert_allclose(client_scores(SKEWED), scarcity, rtol=1e-14)
    np.testing.assert_allclose(client_scores(SKEWED, rule="absolute"), np.full(4, 1 / 4), rtol=1e-14)


def test_scarcity_favours_the_rarest_class_and_the_printed_score_the_head() -> None:
    pure = np.diag(exponential(0.1))  # client c holds class c alone
    scarcity, absolute = client_scores(pure), client_scores(pure, rule="absolute")
    assert scarcity.argmax() == 9
    assert scarcity[0] == 0.0
    assert absolute.argmax() == 0
    assert absolute[0] == pytest.approx(0.145, abs=5e-4)
    assert absolute[9] == scarcity[9] == pytest.approx(0.076, abs=5e-4)


def test_the_local_score_is_a_clients_own_distance_from_the_target() -> None:
    """It does not vanish where the clients' skews cancel, and asks nothing of the other clients."""
    balanced = np.array([[10, 0], [0, 10], [5, 5]])
    assert discrepancy(balanced) == 0.0
    np.testing.assert_allclose(local_deviations(balanced), [1.0, 1.0, 0.0])
    np.testing.assert_array_equal(client_scores(balanced, rule="local"), local_deviations(balanced))
    np.testing.assert_array_equal(local_deviations(balanced[1:2], [0.25, 0.75]), [0.5])


def test_a_given_prior_scores_a_single_client_as_the_whole_table_does() -> None:
    prior = SKEWED.sum(axis=0) / SKEWED.sum()
    alone = [client_scores(row[None], prior=prior)[0] for row in SKEWED]
    np.testing.assert_allclose(alone, client_scores(SKEWED), rtol=1e-14)


def test_scores_honour_the_target() -> None:
    np.testing.assert_allclose(client_scores(SKEWED, [1.0, 0.0]), SKEWED[:, 0] / SKEWED.sum(axis=1) / 4)
    np.testing.assert_array_equal(client_scores(SKEWED, [0.75, 0.25]), np.zeros(4))
    np.testing.assert_array_equal(client_scores(SKEWED, [0.75, 0.25], "absolute"), np.zeros(4))


@given(tables(), st.sampled_from(["scarcity", "absolute"]), st.integers(1, 1000))
def test_scores_are_shares_and_depend_on_class_mixtures_alone(table: Counts, rule: Any, factor: int) -> None:
    scores = client_scores(table, rule=rule)
    assert scores.shape == (len(table),)
    assert ((scores >= 0) & (scores <= 1)).all()
    np.testing.assert_allclose(client_scores(table * factor, rule=rule), scores, atol=1e-12)
    np.testing.assert_allclose(client_scores(table[::-1], rule=rule), scores[::-1], atol=1e-12)
    np.testing.assert_allclose(client_scores(table[:, ::-1], rule=rule), scores, atol=1e-12)


@given(tables())
def test_the_sample_weighted_mean_score_is_that_of_the_global_distribution(table: Counts) -> None:
    p = table.sum(axis=0) / table.sum()
    expected = np.maximum(1 / table.shape[1] - p, 0) @ p
    assert np.average(client_scores(table), weights=table.sum(axis=1)) == pytest.approx(expected, abs=1e-12)


# --- temperature -------------------------------------------------------------------------------------


def test_temperature_is_scale_over_classes_times_discrepancy() -> None:
    assert temperature(SKEWED) == pytest.approx(1 / (2 * 0.5), rel=1e-14)
    assert temperature(SKEWED, scale=0.25) == pytest.approx(0.25, rel=1e-14)
    assert temperature(SKEWED, [0.0, 1.0]) == pytest.approx(1 / (2 * 1.5), rel=1e-14)
    assert temperature([[10, 10, 10]]) == float("inf")
    assert temperature(SKEWED, [0.75, 0.25]) == float("inf")


def test_temperature_falls_as_the_tail_grows() -> None:
    temperatures = [temperature(exponential(f)[None]) for f in (1, 0.5, 0.1, 0.05, 0.01)]
    assert (np.diff(temperatures) < 0).all()


# --- weights -----------------------------------------------------------------------------------------


def test_weights_are_the_softmax_of_the_scores() -> None:
    powers = np.exp(np.array([0.1, 0.3, 0.0]) / 0.2)
    np.testing.assert_allclose(client_weights([0.1, 0.3, 0.0], 0.2), powers / powers.sum(), rtol=1e-14)


def test_weights_with_samples_are_multiplied_by_them_and_renormalised() -> None:
    powers = np.exp(np.array([0.1, 0.3, 0.0]) / 0.2) * [30, 10, 60]
    np.testing.assert_allclose(
        client_weights([0.1, 0.3, 0.0], 0.2, [30, 10, 60]), powers / powers.sum(), rtol=1e-14
    )


def test_infinite_temperature_makes_weights_even_or_proportional_to_samples() -> None:
    np.testing.assert_array_equal(client_weights([0.0, 0.7, 0.2, 0.1], float("inf")), np.full(4, 0.25))
    np.testing.assert_allclose(client_weights([0.5, 0.0], float("inf"), [30, 10]), [0.75, 0.25], rtol=1e-15)


scores_of_clients = arrays(np.float64, st.integers(1, 12), elements=st.floats(0, 1))


@given(scores_of_clients, st.floats(1e-3, 1e3), st.floats(-5, 5))
def test_weights_sum_to_1_rise_with_the_score_and_ignore_a_shift(
    s: NDArray[np.float64], t: float, shift: float
) -> None:
    weights = client_weights(s, t)
    assert weights.sum() == pytest.approx(1, rel=1e-12)
    assert (weights >= 0).all()
    assert (np.diff(weights[np.argsort(s)]) >= 0).all()
    np.testing.assert_allclose(client_weights(s + shift, t), weights, rtol=1e-9, atol=1e-12)


@given(scores_of_clients, st.data())
def test_weights_with_samples_sum_to_1_and_more_samples_count_more(s: NDArray[np.float64], data: Any) -> None:
    n = data.draw(arrays(np.int64, len(s), elements=st.integers(1, 10**6)))
    weights = client_weights(s, 0.3, n)
    assert weights.sum() == pytest.approx(1, rel=1e-12)
    np.testing.assert_allclose(weights / n * (n * client_weights(s, 0.3)).sum(), client_weights(s, 0.3))


# --- adaptive alpha ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("imbalance", "alpha"), [(1, 0.1), (0.5, 0.256), (0.1, 0.501), (0.05, 0.565), (0.01, 0.662)]
)
def test_alpha_of_the_paper_s_tails(imbalance: float, alpha: float) -> None:
    counts = exponential(imbalance)[None]
    mean = float(client_scores(counts).mean())
    assert adaptive_alpha(discrepancy(counts), mean, mean) == pytest.approx(alpha, abs=5e-4)


def test_alpha_by_hand_with_its_base_and_its_ratio() -> None:
    rise = 1 - np.exp(-0.5)
    assert adaptive_alpha(0.5, 0.2, 0.2) == pytest.approx(0.1 + 0.9 * rise, rel=1e-14)
    assert adaptive_alpha(0.5, 0.1, 0.2) == pytest.approx(0.1 + 0.9 * rise / 2, rel=1e-14)
    assert adaptive_alpha(0.5, 0.1, 0.2, base=0.4) == pytest.approx(0.4 + 0.6 * rise / 2, rel=1e-14)
    assert adaptive_alpha(0.0, 0.1, 0.2) == 0.1
    assert adaptive_alpha(0.5, 0.0, 0.2) == 0.1


def test_the_ratio_is_1_where_nobody_holds_scarce_data() -> None:
    assert adaptive_alpha(0.5, 0.0, 0.0) == adaptive_alpha(0.5, 1.0, 1.0) > 0.1
    assert adaptive_alpha(0.5, 0.2, 0.0) == adaptive_alpha(0.5, 0.2, 1e-200) == 1 - 1e-6  # no jump at 0


mean_scores = st.just(0.0) | st.floats(1e-9, 1)


@given(st.floats(0, 2), mean_scores, mean_scores, st.floats(0, 0.999))
def test_alpha_stays_between_its_base_and_just_below_1(d: float, now: float, overall: float, base: float) -> None:
    alpha = adaptive_alpha(d, now, overall, base)
    assert base <= alpha <= 1 - ALPHA_MARGIN
    assert adaptive_alpha(d + 0.1, now, overall, base) >= alpha


def test_alpha_is_capped_for_any_ratio_and_any_exponent() -> None:
    assert adaptive_alpha(1.0, 1.0, 1e-9) == 1 - ALPHA_MARGIN
    assert adaptive_alpha(float("inf"), 0.2, 0.2) == 1 - ALPHA_MARGIN


# --- gain --------------------------------------------------------------------------------------------

GAINS = [
    *[(600, 0.900), (434, 0.933), (245, 0.918), (204, 1.103), (148, 0.912)],  # Fashion-MNIST
    *[(500, 0.900), (362, 0.994), (329, 0.957), (204, 1.103)],  # CIFAR-10
    *[(178, 1.011), (170, 1.059), (161, 1.118), (124, 1.089)],
]


@pytest.mark.parametrize(("samples", "gain"), GAINS)
def test_gains_of_the_paper_s_settings(samples: int, gain: float) -> None:
    # The docs print n per client rounded down and the gain to three digits.
    assert momentum_gain(0.1, samples, 50) == pytest.approx(gain, abs=6e-4)
    assert momentum_gain(0.1, [samples] * 100, 50) == momentum_gain(0.1, samples, 50)


def test_gain_of_unequal_clients_is_the_mean_ceiling_over_the_mean_fraction() -> None:
    assert momentum_gain(0.2, [10, 60, 50], 50) == pytest.approx(0.8 * ((1 + 2 + 1) / 3) / (40 / 50), rel=1e-14)


@given(st.floats(0, 1), st.lists(st.integers(1, 10**6), min_size=1, max_size=20), st.integers(1, 1000))
def test_gain_is_never_below_1_minus_alpha_and_exactly_that_without_remainders(
    alpha: float, samples: list[int], batch_size: int
) -> None:
    assert momentum_gain(alpha, samples, batch_size) >= (1 - alpha) * (1 - 1e-12)
    whole = [n * batch_size for n in samples]
    assert momentum_gain(alpha, whole, batch_size) == pytest.approx(1 - alpha, rel=1e-12, abs=1e-15)


# --- bad input ---------------------------------------------------------------------------------------

BAD_COUNTS = [
    ([[1, 2], [3, -4]], "negative: client 1, class 1: -4"),
    ([[1, 2], [0, 0]], "all-zero rows: client 1"),
    ([1, 2, 3], r"clients × classes.*\(3,\)"),
    (np.zeros((0, 3)), r"clients × classes.*\(0, 3\)"),
    (np.zeros((2, 0)), r"clients × classes.*\(2, 0\)"),
    ([[1.0, np.nan]], "NaN"),
    ([[1.0, np.inf]], "infinity"),
]


@pytest.mark.parametrize(("counts", "problem"), BAD_COUNTS)
@pytest.mark.parametrize("function", [discrepancy, client_scores, temperature])
def test_bad_counts_are_refused_and_named(function: Any, counts: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=f"counts must.*{problem}"):
        function(counts)


BAD_TARGETS = [
    ([0.5, 0.6], "target must sum to 1, not 1.1"),
    ([1.5, -0.5], "target must not be negative: class 1 has -0.5"),
    ([1.0], "target must have one entry per class: 1 for 2 classes"),
    ([[0.5, 0.5]], r"target must be a vector.*\(1, 2\)"),
    ([np.nan, 1.0], "target must be finite"),
]


@pytest.mark.parametrize(("target", "problem"), BAD_TARGETS)
@pytest.mark.parametrize("function", [discrepancy, client_scores, temperature])
def test_a_bad_target_is_refused_and_named(function: Any, target: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        function(SKEWED, target)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: client_scores(SKEWED, rule="rare"), "rule must be 'scarcity', 'absolute' or 'local', not 'rare'"),  # type: ignore[arg-type]
        (lambda: client_scores(SKEWED, prior=[0.5, 0.6]), "prior must sum to 1"),
        (lambda: client_scores(SKEWED, prior=[1.0]), "prior must have one entry per class"),
        (lambda: temperature(SKEWED, scale=0), "scale must be a positive number, not 0"),
        (lambda: temperature(SKEWED, scale=float("nan")), "scale must be a positive number, not nan"),
        (lambda: client_weights([], 1.0), "scores must be a vector with at least one entry"),
        (lambda: client_weights([0.1, np.nan], 1.0), "scores must be finite"),
        (lambda: client_weights([0.1], 0.0), "temperature must be positive"),
        (lambda: client_weights([0.1], float("nan")), "temperature must be positive"),
        (lambda: client_weights([0.1, 0.2], 1.0, [3]), "samples must have one entry per score: 1 for 2"),
        (lambda: client_weights([0.1, 0.2], 1.0, [3, 0]), "samples must be positive: client 1 has 0"),
        (lambda: adaptive_alpha(-0.1, 0.1, 0.1), "deviation must be non-negative, not -0.1"),
        (lambda: adaptive_alpha(float("nan"), 0.1, 0.1), "deviation must be non-negative, not nan"),
        (lambda: adaptive_alpha(0.1, -1.0, 0.1), "round_mean must be a non-negative number, not -1.0"),
        (lambda: adaptive_alpha(0.1, 0.1, float("nan")), "overall_mean must be a non-negative number"),
        (lambda: adaptive_alpha(0.1, 0.1, 0.1, base=-0.1), r"base must be in \[0, 1.* not -0.1"),
        (lambda: momentum_gain(1.2, 100, 50), r"alpha must be in \[0, 1\], not 1.2"),
        (lambda: momentum_gain(0.1, [100, 0], 50), "samples must be positive, not 0"),
        (lambda: momentum_gain(0.1, [100, np.inf], 50), "samples must be finite"),
        (lambda: momentum_gain(0.1, 100, 0), "batch_size must be at least 1, not 0"),
    ],
)
def test_other_bad_values_are_refused_and_named(call: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        call()


# --- extremes ----------------------------------------------------------------------------------------


def whole_chain(counts: Any) -> NDArray[np.float64]:
    """Weights and alpha from counts, with every floating-point trouble an error."""
    with np.errstate(all="raise"):
        scores = client_scores(counts)
        weights = client_weights(scores, temperature(counts, scale=0.25))
        alpha = adaptive_alpha(discrepancy(counts), float(scores[:1].mean()), float(scores.mean()))
    assert 0.1 <= alpha < 1
    assert np.isfinite(weights).all()
    assert weights.sum() == pytest.approx(1, rel=1e-12)
    return weights


@pytest.mark.parametrize("counts", [[[5], [70]], [[1]], [[20, 20], [30, 30]]], ids=["one", "single", "balanced"])
def test_one_class_and_balanced_classes_give_exactly_even_weights(counts: Any) -> None:
    np.testing.assert_array_equal(whole_chain(counts), np.full(len(counts), 1 / len(counts)))


def test_a_tail_of_one_in_a_million_is_unremarkable() -> None:
    tail = exponential(1e-6, largest=10**6)
    assert tail[-1] == 1
    weights = whole_chain(np.diag(tail))
    assert weights.argmax() == 9
    assert whole_chain(tail[None])[0] == 1.0


def test_a_temperature_near_0_picks_the_best_client_without_overflow() -> None:
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(client_weights([0.1, 0.4, 0.2], 1e-320), [0.0, 1.0, 0.0])
        weights = client_weights([0.1, 0.4, 0.2], 4e-4)  # exp(-750) is below the smallest number
    np.testing.assert_array_equal(weights, [0.0, 1.0, weights[2]])


def test_a_million_clients_take_under_two_seconds() -> None:
    table = np.random.default_rng(0).integers(0, 50, size=(10**6, 10)) + 1
    began = time.process_time()
    weights = whole_chain(table)
    assert time.process_time() - began < 2
    assert len(weights) == 10**6


def test_the_prior_shift_is_the_scaled_log_ratio_of_shares_and_target() -> None:
    shares = np.array([[8, 1.5, 0.5], [3, 3, 4]]) / 10
    counts = [[16, 3, 0], [3, 3, 4]]
    np.testing.assert_allclose(prior_shift(counts, absent=1), np.log(shares * 3), rtol=1e-6)
    target = np.array([0.5, 0.3, 0.2])
    np.testing.assert_allclose(prior_shift(counts, target, 2.0, 1), 2 * np.log(shares / target), rtol=1e-6)
    np.testing.assert_allclose(prior_shift([[4, 0]]), np.log([[16 / 9, 2 / 9]]), rtol=1e-6)
    with pytest.raises(ValueError, match="client 1, class 1: -2"):
        client_scores([[0, 3], [1, -2]])


@given(arrays(np.float64, st.integers(1, 12), elements=st.floats(0, 1e6)), st.floats(0.01, 1.0))
def test_no_share_is_above_the_limit_and_the_sum_and_the_order_stay(weights: NDArray[Any], most: float) -> None:
    if not weights.sum() > 1e-3:
        weights[0] = 1.0
    limited, total = limit_shares(weights, most), weights.sum()
    top = min(1.0, max(most, 2 / len(weights))) * total
    assert limited.max() <= top * (1 + 1e-9)
    assert limited.sum() == pytest.approx(total)
    assert (np.diff(limited[np.argsort(weights, kind="stable")]) >= -1e-9 * total).all()
    np.testing.assert_allclose(limit_shares(limited, most), limited, atol=1e-9 * total)
    if weights.max() <= top:
        np.testing.assert_array_equal(limited, weights)


def test_what_is_cut_off_goes_to_the_others_in_proportion() -> None:
    np.testing.assert_allclose(limit_shares([16, 1, 1, 1, 1], 0.3), [8, 3, 3, 3, 3])
    np.testing.assert_allclose(limit_shares([1.0, 0, 0, 0], 0.2), [1 / 2, 1 / 6, 1 / 6, 1 / 6])
