"""The noise has the distribution that its epsilon promises."""

import numpy as np
import pytest

from fedwcm.privacy import noisy_counts

DRAWS = 200_000


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_noise_on_counts_has_mean_zero_and_the_stated_variance(epsilon: float) -> None:
    exact = np.full(DRAWS, 10_000)
    noise = noisy_counts(exact, epsilon, np.random.default_rng(0)) - exact
    a = np.exp(-epsilon)
    variance = 2 * a / (1 - a) ** 2
    assert abs(noise.mean()) < 5 * np.sqrt(variance / DRAWS)
    assert noise.var() == pytest.approx(variance, rel=0.05)


@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_one_sample_more_changes_no_probability_by_more_than_e_to_the_epsilon(epsilon: float) -> None:
    rng = np.random.default_rng(1)
    with_it = np.bincount(noisy_counts(np.full(DRAWS, 4), epsilon, rng), minlength=20)
    without = np.bincount(noisy_counts(np.full(DRAWS, 3), epsilon, rng), minlength=20)
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


@pytest.mark.parametrize("count", [0, 2])
def test_clipping_at_zero_adds_the_stated_bias(count: int) -> None:
    noisy = noisy_counts(np.full(DRAWS, count), 0.5, np.random.default_rng(3))
    a = np.exp(-0.5)
    assert noisy.min() == 0
    assert noisy.mean() - count == pytest.approx(
        a ** (count + 1) / (1 - a**2), abs=5 * noisy.std() / np.sqrt(DRAWS)
    )


def test_a_large_epsilon_leaves_the_counts_as_they_are() -> None:
    assert noisy_counts([5, 0, 7], 60.0, np.random.default_rng(0)).tolist() == [5, 0, 7]


def test_the_same_generator_gives_the_same_noise() -> None:
    first, second = (noisy_counts([50] * 9, 0.5, np.random.default_rng(4)) for _ in range(2))
    assert first.tolist() == second.tolist()


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("inf"), float("nan"), 1e-9])
def test_an_epsilon_that_promises_nothing_is_refused(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon must be"):
        noisy_counts([1], epsilon, np.random.default_rng(0))
