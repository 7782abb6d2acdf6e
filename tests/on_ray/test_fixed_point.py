"""Sums in fixed point: the same to the last bit however the terms are divided and ordered, and accurate."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedwcm.core.types import Floats
from fedwcm.engine.backends.on_ray.fixed_point import PIECE, add_weighted, in_units_of_one, magnitudes, unit


def summed(rows: torch.Tensor, weights: Floats, parts: list[list[int]]) -> torch.Tensor:
    """The sum, each part by a worker of its own, added up in this order."""
    scale = unit(float((np.abs(weights) @ magnitudes(rows)).max()))
    total = np.zeros((len(weights), rows[0].numel()))
    for part in parts:
        own = np.zeros_like(total)
        add_weighted(own, rows[part], weights[:, part], scale)
        total += own
    return in_units_of_one(total, scale, rows.dtype)


@given(st.permutations(range(9)), st.sets(st.integers(1, 8)), st.integers(0, 2**32 - 1))
def test_neither_the_order_nor_the_division_changes_a_bit(order: list[int], cuts: set[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    scales = 10.0 ** rng.uniform(-12, 12, size=(9, 17))
    rows = torch.from_numpy((rng.normal(size=(9, 17)) * scales).astype(np.float32))
    weights = rng.normal(size=(2, 9))
    edges = [0, *sorted(cuts), 9]
    parts = [list(order[a:b]) for a, b in pairwise(edges)]
    assert torch.equal(summed(rows, weights, parts), summed(rows, weights, [list(range(9))]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clients", [1, 1000])
def test_sums_are_those_of_float64(dtype: torch.dtype, clients: int) -> None:
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.normal(size=(clients, 3, 7))).to(dtype)
    weights = rng.dirichlet(np.ones(clients), size=2)
    exact = (torch.from_numpy(weights) @ rows.double().reshape(clients, -1)).to(dtype)
    torch.testing.assert_close(summed(rows, weights, [list(range(clients))]), exact, rtol=1e-6, atol=1e-14)


def test_long_rows_are_added_piece_by_piece() -> None:
    rows = torch.arange(2.0 * (2 * PIECE + 3)).reshape(2, -1)
    assert torch.equal(summed(rows, np.ones((1, 2)), [[1], [0]])[0], rows.sum(dim=0))


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-300, 3e38])
def test_tiny_and_huge_uploads_come_through(size: float) -> None:
    rows = torch.tensor([[size, -size, 0.0]], dtype=torch.float64 if size == 1e-300 else torch.float32)
    sums = summed(rows, np.array([[1.0], [-1.0]]), [[0]])
    torch.testing.assert_close(sums, torch.cat([rows, -rows]), rtol=1e-9, atol=0.0 if size != 1e-300 else 1e-270)


def test_an_upload_without_numbers_has_none_to_bound() -> None:
    assert magnitudes(torch.zeros(2, 0)).tolist() == [0.0, 0.0]
    assert summed(torch.zeros(2, 0), np.ones((1, 2)), [[0, 1]]).shape == (1, 0)


def test_the_bound_of_an_upload_is_its_largest_magnitude_and_hides_no_nan() -> None:
    rows = torch.tensor([[1.0, -3.0], [2.0, 0.5], [0.0, -float("inf")], [float("nan"), 1.0]])
    np.testing.assert_array_equal(magnitudes(rows), [3.0, 2.0, np.inf, np.nan])
