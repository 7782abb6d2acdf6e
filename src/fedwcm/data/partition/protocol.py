"""What a partition is, and what is checked of what it takes and returns."""

from numbers import Integral, Real
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedwcm.core.checks import require

# Beyond these a Dirichlet draw is one-hot, or even, to the last bit.
_SMALLEST, _LARGEST = 1e-9, 1e9


class Partition(Protocol):
    """Splits a labelled data set over clients.

    The call returns one array of indices into `labels` for each client, sorted. No client is empty, no index is in
    two of them, and some may be in none.
    The same generator state gives the same split.
    """

    @property
    def clients(self) -> int:
        """The number of clients."""
        ...

    def __call__(self, labels: NDArray[np.int64], rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """Split the samples over the clients."""
        ...


def check_count(field: str, value: object) -> None:
    """Raise unless the value is a whole number of at least 1."""
    is_count = not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= 1
    require(is_count, field, value, "an integer of at least 1")


def check_positive(field: str, value: object) -> None:
    """Raise unless the value is a positive number of a sensible magnitude."""
    in_range = not isinstance(value, bool) and isinstance(value, Real) and _SMALLEST <= float(value) <= _LARGEST
    require(in_range, field, value, f"a number above 0 (from {_SMALLEST:g} to {_LARGEST:g})")


def check_labels(labels: NDArray[np.int64], clients: int) -> NDArray[np.int64]:
    """Return the labels as int64. Raise unless they are class numbers and enough for one sample per client."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"labels must be a one-dimensional integer array, got {labels.dtype}{labels.shape}")
    if labels.size < clients:
        raise ValueError(
            f"clients = {clients} is not allowed: there are only {labels.size} samples, "
            "and each client needs at least one"
        )
    require(labels.min() >= 0, "smallest label", int(labels.min()), "a class number from 0 up")
    return labels.astype(np.int64, copy=False)


def check_parts(name: str, parts: object, samples: int, clients: object = None) -> list[NDArray[np.int64]]:
    """Return what a partition of the user's own made, as int64.

    Refuse what is not one array of rows for each client, with no row in two of them. Rows may be left out.

    Args:
        name: of the partition, for error messages.
        parts: what it returned.
        samples: the number of rows that there are.
        clients: the number of clients that it promises, if it does.
    """
    if not isinstance(parts, (list, tuple)) or not parts:
        raise ValueError(
            f"{name} returned {_describe(parts)}: it must be a list with an array of rows for each client"
        )
    if clients is not None and len(parts) != clients:
        raise ValueError(f"{name} returned {len(parts)} parts: it must be one for each of its clients = {clients}")
    rows = [_check_part(f"{name}: part {k}", part, samples) for k, part in enumerate(parts)]
    times = np.bincount(np.concatenate(rows), minlength=samples)
    if times.max() > 1:
        row = int(times.argmax())
        owners = [k for k, part in enumerate(rows) if row in part]
        raise ValueError(
            f"{name} gives row {row} {times[row]} times, to the parts {', '.join(map(str, owners))}: "
            "a row must be given at most once"
        )
    return rows


def _check_part(where: str, part: object, samples: int) -> NDArray[np.int64]:
    if not isinstance(part, np.ndarray) or part.ndim != 1 or part.dtype.kind not in "iu":
        raise ValueError(f"{where} is {_describe(part)}: it must be an array of whole numbers, of shape (n,)")
    if not part.size:
        raise ValueError(f"{where} is empty: every client must have at least one row")
    wrong = part[(part < 0) | (part >= samples)]
    if wrong.size:
        raise ValueError(f"{where} has the row {wrong[0]}: rows must be from 0 to {samples - 1}")
    return part.astype(np.int64)


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    empty = "an empty" if isinstance(value, (list, tuple)) and not value else "a"
    return f"{empty} {type(value).__name__}"
