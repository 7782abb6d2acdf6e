"""The noise has the distribution that its epsilon promises."""

from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest

from fedwcm.config.settings import from_settings
from fedwcm.core.disclosure import as_counts
from fedwcm.experiment.class_distribution import gather_distribution, reported_counts
from fedwcm.privacy import noisy_counts
from fedwcm.privacy.options import PrivacyOptions, noise_bound

DRAWS = 200_000


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_noise_on_counts_has_mean_zero_and_the_stated_variance(epsilon: float) -> None:
    exact = np.full(DRAWS, 10_000)
    noise = noisy_counts(exact, epsilon, np.random.default_rng(0)) - exact
    a = np.exp(-epsilon)
    variance = 2 * a / (1 - a) ** 2
    assert abs(noise.mean()) < 5 * np.sqrt(variance / DRAWS)
    assert noise.var() == pytest.approx(variance, rel=0.05)
    assert np.abs(noise).mean() == pytest.approx(2 * a / (1 - a**2), rel=0.02)


def test_the_figures_of_the_page_are_those_of_the_formulas() -> None:
    a, clients = np.exp(-1.0), 100
    deviation = np.sqrt(2 * a * clients) / (1 - a)
    assert (round(2 * a / (1 - a**2), 2), round(deviation, 1)) == (0.85, 13.6)
    assert round(deviation / np.sqrt(2 * np.pi), 1) == 5.4, "the mean of what is raised to 0"


@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_one_sample_more_changes_no_probability_by_more_than_e_to_the_epsilon(epsilon: float) -> None:
    rng = np.random.default_rng(1)
    with_it, without = (
        np.bincount(noisy_counts(np.full(DRAWS, count), epsilon, rng) + noise_bound(epsilon)) for count in (4, 3)
    )
    for a, b in zip(with_it, without, strict=False):
        if min(a, b) >= 1000:  # where five standard errors of the ratio stay below a fifth
            assert abs(np.log(a / b)) < epsilon + 0.2


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_noise_follows_the_discrete_laplace_distribution(epsilon: float) -> None:
    noise = noisy_counts(np.full(DRAWS, 1000), epsilon, np.random.default_rng(2)) - 1000
    a = np.exp(-epsilon)
    for j in range(-4, 5):
        expected = (1 - a) / (1 + a) * a ** abs(j)
        assert (noise == j).mean() == pytest.approx(expected, abs=5 * np.sqrt(expected / DRAWS))


@pytest.mark.parametrize(("mode", "epsilon"), [("none", 0.1), ("none", 1.0), ("he", 1.0)])
def test_noise_does_not_flatten_the_tail(epsilon: float, mode: Literal["none", "he"]) -> None:
    """The sum over clients has the exact counts as its mean, in classes that most of them lack as well."""
    runs, clients = (300, 100) if mode == "none" else (3, 20)
    counts = np.tile([40, 10, 1, 0], (clients, 1))
    privacy, rng = PrivacyOptions(mode=mode, epsilon=epsilon), np.random.default_rng(3)
    totals = []
    for _ in range(runs):
        noisy = np.stack([noisy_counts(row, epsilon, rng) for row in counts])
        totals.append(gather_distribution(noisy, None, privacy).totals)
    a = np.exp(-epsilon)
    deviation = np.sqrt(2 * a * clients) / (1 - a)
    error = np.abs(np.mean(totals, axis=0) - counts.sum(axis=0))
    assert (error[:2] < 5 * deviation / np.sqrt(runs)).all()
    assert np.min(totals) >= 0
    # Raised to 0 the sum has at most the mean of a half-normal variable too much, whatever the number of clients.
    assert (error[2:] < 0.4 * deviation + 5 * deviation / np.sqrt(runs)).all()


def test_counts_with_noise_are_never_all_zero() -> None:
    assert as_counts(np.array([[-3, 0], [-1, 2], [4, 1]])).tolist() == [[1, 1], [0, 2], [4, 1]]


def test_a_large_epsilon_leaves_the_counts_as_they_are() -> None:
    assert noisy_counts([5, 0, 7], 60.0, np.random.default_rng(0)).tolist() == [5, 0, 7]


def test_the_same_generator_gives_the_same_noise_and_a_simulated_run_has_its_seed_s() -> None:
    first, second = (noisy_counts([50] * 9, 0.5, np.random.default_rng(4)) for _ in range(2))
    assert first.tolist() == second.tolist()
    federation: Any = SimpleNamespace(counts=np.full((3, 9), 50))
    settings = [{"privacy.epsilon": 0.5, "run.seed": seed} for seed in (0, 0, 1)]
    drawn = [reported_counts(from_settings(own), federation).tolist() for own in settings]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("inf"), float("nan"), 1e-9])
def test_an_epsilon_that_promises_nothing_is_refused(epsilon: float) -> None:
    with pytest.raises(ValueError, match=r"epsilon = .* must be a number of at least"):
        noisy_counts([1], epsilon, np.random.default_rng(0))
