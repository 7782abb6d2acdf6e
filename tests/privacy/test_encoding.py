"""Counts split into slots and summed slot by slot are the sum of the counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedwcm.privacy import ProtocolError
from fedwcm.privacy.encoding import (
    BASE,
    CLASSES_PER_CIPHERTEXT,
    DIGITS,
    MAX_CONTRIBUTORS,
    MAX_COUNT,
    PLAIN_MODULUS,
    SLOTS,
    checked_counts,
    ciphertexts_needed,
    from_slots,
    slots_used,
    to_slots,
)

Table = NDArray[np.int64]


def summed(table: Table) -> list[Table]:
    """What the scheme does: add slot by slot, modulo the plain modulus."""
    rows = [to_slots(row) for row in table]
    return [np.sum(parts, axis=0) % PLAIN_MODULUS for parts in zip(*rows, strict=True)]


@given(st.integers(1, 30), st.integers(1, 2000), st.integers(0, 2**32))
def test_slot_sums_give_the_class_totals(clients: int, classes: int, seed: int) -> None:
    table = np.random.default_rng(seed).integers(0, MAX_COUNT, (clients, classes), endpoint=True)
    assert from_slots(summed(table), clients).tolist() == table.sum(axis=0).tolist()


def test_the_most_contributors_with_the_largest_counts_do_not_wrap() -> None:
    slots = to_slots(np.full(3, MAX_COUNT, dtype=np.int64))
    sums = [part * MAX_CONTRIBUTORS % PLAIN_MODULUS for part in slots]
    assert from_slots(sums, MAX_CONTRIBUTORS).tolist() == [MAX_CONTRIBUTORS * MAX_COUNT] * 3


def test_one_contributor_more_could_wrap() -> None:
    assert MAX_CONTRIBUTORS * (BASE - 1) < PLAIN_MODULUS <= (MAX_CONTRIBUTORS + 1) * (BASE - 1)


def test_a_count_holds_a_thousand_million() -> None:
    assert MAX_COUNT >= 10**9
    assert MAX_CONTRIBUTORS >= 10**4


@pytest.mark.parametrize(
    ("classes", "expected"),
    [(1, (6,)), (819, (4096,)), (820, (4096, 6)), (1000, (4096, 906)), (1638, (4096, 4096))],
)
def test_classes_beyond_the_slots_take_another_ciphertext(classes: int, expected: tuple[int, ...]) -> None:
    assert slots_used(classes) == expected
    assert ciphertexts_needed(classes) == len(expected)
    assert tuple(map(len, to_slots(np.zeros(classes, dtype=np.int64)))) == expected
    assert CLASSES_PER_CIPHERTEXT * DIGITS + 1 <= SLOTS


@pytest.mark.parametrize("claimed", [2, 4])
def test_a_sum_of_another_number_of_contributors_is_refused(claimed: int) -> None:
    sums = summed(np.ones((3, 900), dtype=np.int64))
    with pytest.raises(ProtocolError, match="not a sum of"):
        from_slots(sums, claimed)


def test_slots_that_no_contributors_could_sum_to_are_refused() -> None:
    (slots,) = summed(np.ones((3, 5), dtype=np.int64))
    slots[4] = 3 * BASE
    with pytest.raises(ProtocolError):
        from_slots([slots], 3)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([1, -2], "class 1 has -2"),
        ([MAX_COUNT + 1], "from 0 to 1,073,741,823"),
        ([0.5], "whole numbers"),
        ([1.0, float("nan")], "class 1 has nan"),
        ([], "one number per class"),
        ([[1, 2]], "one number per class"),
        (["a"], "must be numbers"),
    ],
)
def test_counts_that_cannot_travel_are_named(counts: list[object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_counts(counts)  # type: ignore[arg-type]


def test_whole_floats_are_counts() -> None:
    assert checked_counts([3.0, 0.0]).tolist() == [3, 0]
