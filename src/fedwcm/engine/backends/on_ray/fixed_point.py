"""Sums that do not depend on the order of their terms, nor on who adds which of them.

Floating-point addition rounds, so that a sum over workers would depend on which worker has which clients. Here
every term is first rounded to a whole multiple of one unit, a power of two far below the rounding of float32.
Whole numbers up to 2⁵³ add up in float64 without any error: in every order, and in every tree.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwcm.core.types import Floats

BITS = 51
"""Binary digits of a sum: two less than float64 has, which leaves room for what rounding adds to the terms."""

SMALLEST = 2.0**-900
"""Smaller units would overflow the reciprocals by which terms are scaled."""

PIECE = 2**13
"""Numbers of each client that are added up at a time: what fits into a core's cache."""


def unit(bound: float) -> float:
    """Return the unit for a sum whose terms have magnitudes that add up to at most this."""
    return max(SMALLEST, math.ldexp(1.0, math.frexp(bound)[1] - BITS))


def add_weighted(total: Floats, rows: Tensor, weights: Floats, unit: float) -> None:
    """Add Σ_k weights_k · rows_k to the total `(m, P)`, in units; the weights are `(m, K)`, the rows `(K, …)`."""
    flat, sums = rows.reshape(len(rows), -1), torch.from_numpy(total)
    scaled = torch.from_numpy(weights / unit)[:, :, None]
    for start in range(0, flat.shape[1], PIECE):
        piece = flat[:, start : start + PIECE].double()
        for sum_, factors in zip(sums, scaled, strict=True):
            sum_[start : start + PIECE] += (piece * factors).round_().sum(dim=0)


def in_units_of_one(total: Floats, unit: float, dtype: torch.dtype) -> Tensor:
    """Return a finished sum as ordinary numbers."""
    return torch.from_numpy(total * unit).to(dtype)


def magnitudes(rows: Tensor) -> NDArray[np.float64]:
    """Return the largest magnitude in each row; 0 for empty ones."""
    flat = rows.reshape(len(rows), -1)
    if not flat.shape[1]:
        return np.zeros(len(rows))
    largest = torch.maximum(flat.amax(dim=1), -flat.amin(dim=1))  # in a twentieth of the time of torch's norm
    magnitude: NDArray[np.float64] = largest.double().cpu().numpy()
    return magnitude
