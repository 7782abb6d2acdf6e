"""Laws of the long-tailed subset."""

import warnings
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedwcm.data.longtail import Profile, class_counts, long_tail

CIFAR10, NAN = np.full(10, 5000), float("nan")
NATIVE_COUNTS = st.lists(st.integers(1, 3000), min_size=1, max_size=12).map(np.array)
IMBALANCE = st.floats(0.001, 1)
PROFILE = st.sampled_from(["exponential", "step"])


@pytest.mark.parametrize(
    ("imbalance", "total"), [(1, 50_000), (0.5, 36_223), (0.1, 20_431), (0.05, 17_023), (0.01, 12_406)]
)
def test_cifar10_totals_are_those_of_the_literature(imbalance: float, total: int) -> None:
    assert class_counts(CIFAR10, imbalance).sum() == total


def test_cifar100_total_is_that_of_the_literature() -> None:
    assert class_counts(np.full(100, 500), 0.01).sum() == 10_847


@pytest.mark.parametrize("n_max", [10, 100, 500, 5000, 123_000])
def test_rarest_class_is_exact_where_the_product_is_whole(n_max: int) -> None:
    for denominator, classes in product([1, 2, 5, 10], [2, 3, 10, 100]):
        counts = class_counts(np.full(classes, n_max), 1 / denominator)
        assert (counts[0], counts[-1]) == (n_max, n_max // denominator)


@pytest.mark.parametrize("root", [2, 3, 4, 5, 10])
def test_whole_products_inside_the_profile_do_not_lose_a_sample(root: int) -> None:
    for classes in range(2, 7):
        powers = root ** np.arange(classes)[::-1]
        np.testing.assert_array_equal(class_counts(np.full(classes, powers[0]), 1 / powers[0]), powers)


@pytest.mark.parametrize("profile", get_args(Profile))
def test_percentages_of_a_hundred_are_exact(profile: Profile) -> None:
    for percent in range(1, 101):
        assert class_counts(np.array([100, 100]), percent / 100, profile).tolist() == [100, percent]


@given(NATIVE_COUNTS, IMBALANCE, PROFILE)
def test_every_class_can_supply_its_count_and_none_is_empty(
    available: NDArray[np.int64], imbalance: float, profile: Profile
) -> None:
    counts = class_counts(available, imbalance, profile)
    assert (counts <= available).all()
    assert (counts >= 1).all()
    assert (np.diff(counts) <= 0).all()


@given(NATIVE_COUNTS, IMBALANCE, PROFILE)
def test_default_n_max_is_the_largest_that_can_be_supplied(
    available: NDArray[np.int64], imbalance: float, profile: Profile
) -> None:
    counts = class_counts(available, imbalance, profile)
    n_max = int(counts[0])
    np.testing.assert_array_equal(counts, class_counts(available, imbalance, profile, n_max))
    with pytest.raises(ValueError, match=f"n_max = {n_max + 1} .* class"):
        class_counts(available, imbalance, profile, n_max + 1)


@given(IMBALANCE, st.integers(2, 30))
def test_ratio_holds_for_unequal_native_counts(imbalance: float, classes: int) -> None:
    available = np.random.default_rng(classes).integers(5000, 20_000, classes)
    counts = class_counts(available, imbalance)
    assert counts[-1] / counts[0] == pytest.approx(imbalance, abs=1 / counts[0])


@pytest.mark.parametrize(("classes", "head"), [(10, 5), (5, 3), (2, 1), (1, 1)])
def test_step_has_two_levels_and_the_larger_half_is_the_head(classes: int, head: int) -> None:
    counts = class_counts(np.full(classes, 1000), 0.1, "step")
    assert counts.tolist() == [1000] * head + [100] * (classes - head)


@settings(max_examples=40)
@given(NATIVE_COUNTS, IMBALANCE, PROFILE, st.integers(0, 99))
def test_subset_has_exactly_the_counts(
    available: NDArray[np.int64], imbalance: float, profile: Profile, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(available.size), available))
    kept = long_tail(labels, imbalance, rng, profile)
    assert (np.diff(kept) > 0).all()
    np.testing.assert_array_equal(np.bincount(labels[kept]), class_counts(available, imbalance, profile))


def test_same_seed_same_subset_and_another_seed_another() -> None:
    labels = np.repeat(np.arange(3), 100)
    first, again, other = (long_tail(labels, 0.1, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert first.size == other.size
    assert (first != other).any()


def test_every_sample_is_equally_likely() -> None:
    labels = np.array([0] * 10 + [1] * 10)
    rng = np.random.default_rng(0)
    hits = np.bincount(np.concatenate([long_tail(labels, 0.5, rng) for _ in range(2000)]))
    np.testing.assert_array_equal(hits[:10], 2000)
    np.testing.assert_allclose(hits[10:] / 2000, 0.5, atol=0.05)


@pytest.mark.parametrize(
    ("available", "options", "message"),
    [
        *(
            (CIFAR10, {"imbalance": bad}, f"imbalance = {bad} .* above 0 and at most 1")
            for bad in (0, -1, 1.1, NAN)
        ),
        *((CIFAR10, {"n_max": bad}, f"n_max = {bad} .* at least 1") for bad in (0, -3)),
        (CIFAR10, {"profile": "exponental"}, r"unknown profile 'exponental'.*'exponential'.*step"),
        ([1000, 300], {"imbalance": 0.5, "n_max": 1000}, r"n_max = 1000 .*class 1 would keep 500 .*at most 601"),
    ],
)
def test_a_wrong_argument_is_named(available: list[int], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        class_counts(np.array(available), **{"imbalance": 0.1, **options})


def test_absent_class_is_named() -> None:
    with pytest.raises(ValueError, match=r"none of 1, 3"):
        long_tail(np.array([0, 0, 2, 4]), 0.5, np.random.default_rng(0))


def test_a_tail_that_cannot_be_as_steep_as_asked_for_is_warned_of() -> None:
    labels = np.repeat(np.arange(10), 143)
    with pytest.warns(UserWarning, match=r"imbalance = 0\.0001 is not reached: .* so that it is 0\.007"):
        long_tail(labels, 0.0001, np.random.default_rng(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        long_tail(labels, 0.01, np.random.default_rng(0))
