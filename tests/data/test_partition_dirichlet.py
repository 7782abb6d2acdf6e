"""Laws of Dirichlet weights, of drawing without reuse and of fitting to both margins."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedwcm.data.partition import protocol
from fedwcm.data.partition.equal import _fit_margins

CLASS_TOTALS = st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(any)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    totals=CLASS_TOTALS,
    beta=st.sampled_from([1e-9, 0.01, 0.1, 0.6, 10, 1e9]),
    seed=st.integers(0, 2**32),
)
def test_drawing_uses_up_any_sizes_and_any_stock(
    data: st.DataObject, totals: list[int], beta: float, seed: int
) -> None:
    cuts = data.draw(st.lists(st.integers(0, sum(totals)), max_size=6))
    sizes = np.diff([0, *sorted(cuts), sum(totals)])
    rng = np.random.default_rng(seed)
    log_prior = protocol.log_dirichlet(beta, (sizes.size, len(totals)), rng)
    counts = protocol.draw_without_reuse(log_prior, sizes, np.array(totals), rng)
    assert counts.min() >= 0
    np.testing.assert_array_equal(counts.sum(axis=1), sizes)
    np.testing.assert_array_equal(counts.sum(axis=0), totals)


def test_draws_follow_the_prior_while_nothing_runs_out() -> None:
    prior = np.array([[0.7, 0.2, 0.1, 0.0], [0.05, 0.05, 0.9, 0.0]])
    stock = np.array([40_000, 40_000, 40_000, 0])
    rng = np.random.default_rng(0)
    with np.errstate(divide="ignore"):
        log_prior = np.maximum(np.log(prior), -1e6)
    # A third client takes what the first two leave, so that the totals agree.
    log_prior = np.vstack([log_prior, np.zeros(4)])
    counts = protocol.draw_without_reuse(log_prior, np.array([20_000, 20_000, 80_000]), stock, rng)
    np.testing.assert_allclose(counts[:2] / 20_000, prior, atol=0.02)


def test_chance_decides_who_is_served_when_a_class_runs_short() -> None:
    rng = np.random.default_rng(0)
    all_want_the_first = np.tile([0.0, -1e6], (10, 1))
    served = sum(
        protocol.draw_without_reuse(all_want_the_first, np.full(10, 1), np.array([3, 7]), rng)[:, 0]
        for _ in range(1000)
    )
    np.testing.assert_allclose(served, 300, atol=60)


def test_many_sweeps_at_a_time_have_the_law_of_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def mean_counts(first_seed: int) -> NDArray[np.float64]:
        """Each class's counts, from the client with the fewest to the one with the most."""
        tables = []
        for seed in range(first_seed, first_seed + 200):
            rng = np.random.default_rng(seed)
            log_prior = protocol.log_dirichlet(0.3, (20, 4), rng)
            counts = protocol.draw_without_reuse(log_prior, np.full(20, 25), np.array([300, 120, 60, 20]), rng)
            tables.append(np.sort(counts, axis=0))
        return np.asarray(np.mean(tables, axis=0))

    together = mean_counts(0)
    monkeypatch.setattr(protocol, "_BLOCK", 1)
    np.testing.assert_allclose(together, mean_counts(1000), atol=0.8)


@pytest.mark.parametrize("beta", [0.02, 0.3, 5])
def test_dirichlet_weights_have_the_mean_and_variance_of_their_law(beta: float) -> None:
    weights = protocol.renormalise(protocol.log_dirichlet(beta, (40_000, 4), np.random.default_rng(0)))
    shares = weights / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(shares.mean(axis=0), 0.25, atol=0.01)
    np.testing.assert_allclose(shares.var(axis=0), 0.25 * 0.75 / (4 * beta + 1), rtol=0.05)


def test_renormalising_a_prior_leaves_no_mass_where_nothing_is_allowed() -> None:
    weights = protocol.renormalise(np.array([[0.0, -5000.0, -5001.0]]), np.array([[False, True, True]]))
    np.testing.assert_allclose(weights, [[0, 1, np.exp(-1)]])


def test_fitting_keeps_the_odds_ratios_of_the_priors_and_meets_the_margins() -> None:
    rng = np.random.default_rng(0)
    prior = rng.random((6, 4)) + 0.05
    sizes, stock = np.full(6, 50), np.array([150, 90, 40, 20])
    fitted = _fit_margins(prior, sizes, stock)

    def odds(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
        return matrix[1:, 1:] * matrix[:1, :1] / (matrix[1:, :1] * matrix[:1, 1:])

    np.testing.assert_allclose(odds(fitted), odds(prior))
    np.testing.assert_allclose(fitted.sum(axis=1), sizes, rtol=1e-3)
    np.testing.assert_allclose(fitted.sum(axis=0), stock, rtol=1e-3)
