"""Arrays of samples that may be larger than memory: small ones are in it, large ones in a temporary file."""

from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedwcm.utils.temporary_pages import temporary_pages

IN_MEMORY = 2**30
"""Bytes up to which samples that are unpacked from a file are kept in memory."""

MOVED_BYTES = 2**24
"""Bytes copied at a time."""


def zeros(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array of zeros to be filled with samples."""
    large = prod(shape) * np.dtype(dtype).itemsize > IN_MEMORY
    return _zeros_on_disk(shape, np.dtype(dtype)) if large else np.zeros(shape, dtype)


def take_rows(x: NDArray[Any], rows: NDArray[Any] | slice) -> NDArray[Any]:
    """Return the chosen rows: a view if they are a slice, else a copy, on disk if the array is large."""
    if isinstance(rows, slice) or x.nbytes <= IN_MEMORY:
        return x[rows]
    chosen = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
    copy, step = _zeros_on_disk((len(chosen), *x.shape[1:]), x.dtype), _rows_at_a_time(x)
    for start in range(0, len(chosen), step):
        copy[start : start + step] = x[chosen[start : start + step]]
    return copy


def to_colour(grey: NDArray[Any]) -> NDArray[Any]:
    """Return grey images (n, height, width, 1) with three equal channels."""
    colour, step = zeros((*grey.shape[:3], 3), grey.dtype), _rows_at_a_time(grey)
    for start in range(0, len(grey), step):
        colour[start : start + step] = grey[start : start + step]
    return colour


def _zeros_on_disk(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    count = prod(shape)
    pages = temporary_pages(max(1, count * dtype.itemsize), "unpacked samples")
    return np.frombuffer(pages, dtype, count).reshape(shape)


def _rows_at_a_time(x: NDArray[Any]) -> int:
    return max(1, MOVED_BYTES // max(1, x[:1].nbytes))


def join_arrays(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """Return the arrays as one; a single one is not copied."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
