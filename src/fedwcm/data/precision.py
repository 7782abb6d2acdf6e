"""Numbers that differ in the data and not in float32, in which models compute."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

FEW_STEPS = 100
"""A column whose values span fewer steps of float32 has lost too much of what tells them apart."""


def warn_of_coarse(where: str, values: NDArray[Any], names: Sequence[str] = ()) -> None:
    """Warn of columns far from 0 with values close to each other, such as Unix times, before they are cut.

    Afterwards it is too late: a column that has become constant looks like one that always was.
    """
    if not len(values):
        return
    axes = tuple(range(values.ndim - 1))
    low, high = (reduce(values, axis=axes) for reduce in (np.fmin.reduce, np.fmax.reduce))
    with np.errstate(over="ignore", invalid="ignore"):  # infinite values are refused by another check
        steps = np.spacing(np.maximum(np.abs(low), np.abs(high)).astype(np.float32))
        coarse = (high > low) & (high - low < FEW_STEPS * steps)
    for i in np.flatnonzero(coarse)[:1]:
        column = repr(names[i]) if names else f"{i} (the first is 0)"
        text = (
            f"{where}: column {column} runs from {low[i]!s} to {high[i]!s}, but float32, in which models compute,"
        )
        warnings.warn(
            f"{text} tells only multiples of {steps[i]:g} apart there: subtract a constant beforehand",
            stacklevel=4,
        )
