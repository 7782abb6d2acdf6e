"""Laws of the partition statistics."""

from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedwcm.data.partition import PartitionStatistics, counts_of, describe


def test_statistics_of_a_small_table_by_hand() -> None:
    expected = PartitionStatistics(
        clients=3,
        samples=12,
        size_min=2,
        size_median=4,
        size_max=6,
        classes_per_client_min=1,
        classes_per_client_median=1,
        classes_per_client_max=2,
        distance_mean=(1 / 3 + 1 / 6 + 2 / 3) / 3,
        distance_max=2 / 3,
        share_of_largest_tenth=0.5,
        imbalance=0.5,
    )
    assert asdict(describe(np.array([[6, 0], [2, 2], [0, 2]]))) == pytest.approx(asdict(expected))


def test_statistics_leave_empty_clients_out_of_the_distance() -> None:
    statistics = describe(np.array([[3, 3], [0, 0], [1, 1]]))
    assert statistics.distance_max == 0
    assert statistics.size_min == 0


@pytest.mark.parametrize("counts", [np.zeros((3, 2)), np.zeros(3), np.zeros((0, 2))])
def test_table_without_samples_is_refused(counts: NDArray[np.int64]) -> None:
    with pytest.raises(ValueError, match="counts must be"):
        describe(counts)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=100))
def test_counts_are_those_of_counting_one_client_at_a_time(samples: list[tuple[int, int]]) -> None:
    owner, labels = np.array(samples).T
    parts = [np.flatnonzero(owner == client) for client in range(5)]
    expected = [np.bincount(labels[part], minlength=7) for part in parts]
    np.testing.assert_array_equal(counts_of(parts, labels, 7), expected)


def test_counts_with_too_few_classes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"classes = 2 .* above the largest label, 2"):
        counts_of([np.array([0, 1])], np.array([0, 2]), 2)
