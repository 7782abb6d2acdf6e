"""Values as a `Dataset` holds them and as a trained model takes them."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.dataset import MAX_CHANNELS, model_shape
from fedwcm.data.large_arrays import to_colour
from fedwcm.data.schema import DatasetSchema

LARGEST_EXACT = 2.0**53

FEW_STEPS = 100
"""A column whose values span fewer steps of float32 has lost too much of what tells them apart."""


def as_whole_numbers(values: NDArray[Any]) -> NDArray[Any]:
    """Return integers, and floats that are all whole numbers, as signed integers, and anything else as it is.

    pandas turns integers into floats where a value was missing once, and NumPy unsigned beside signed ones.
    """
    if values.dtype.kind == "u" and (values <= np.iinfo(np.int64).max).all():
        return values.astype(np.int64)
    if values.dtype.kind != "f" or not (np.abs(values) < LARGEST_EXACT).all() or (values % 1 != 0).any():
        return values
    return values.astype(np.int64)


def as_features(where: str, x: NDArray[Any]) -> NDArray[Any]:
    """Return samples as a `Dataset` takes them: images as bytes or float32, other floats as float32, integers as
    is.

    Arrays of three dimensions are grey images if they are of unsigned bytes, otherwise sequences (n, steps,
    channels).
    """
    if x.ndim == 3 and x.dtype == np.uint8:
        x = x[..., np.newaxis]
    is_image = x.ndim == 4 and x.shape[3] <= MAX_CHANNELS
    if x.dtype.kind not in "buif" or not (is_image or x.ndim in (2, 3)):
        raise ValueError(
            f"{where} are {x.dtype} of shape {x.shape}: images must be numbers of shape (n, height, width, "
            f"channels) with at most {MAX_CHANNELS} channels, or uint8 of shape (n, height, width); sequences "
            "numbers of shape (n, steps, channels), tables numbers of shape (n, features)"
        )
    keeps = x.dtype == np.uint8 if is_image else x.dtype.kind in "iu"
    # Images of truth values become floats: as bytes they would pass for pixels from 0 to 255.
    dtype = x.dtype if keeps else np.uint8 if x.dtype.kind == "b" and not is_image else np.float32
    with np.errstate(over="ignore"):  # what overflows becomes infinite, which the Dataset refuses
        return np.ascontiguousarray(x, dtype=dtype.newbyteorder("=") if isinstance(dtype, np.dtype) else dtype)


def match_schema(where: str, x: NDArray[Any], schema: DatasetSchema) -> NDArray[Any]:
    """Return the samples as the model of a schema takes them: of its shape and type."""
    x = as_features(where, x)
    if x.ndim == 4 and x.shape[3] == 1 and schema.input_shape[:1] == (3,):
        x = to_colour(x)  # grey images among coloured ones, as in training
    if model_shape(x) != schema.input_shape:
        raise ValueError(f"{where} have the shape {model_shape(x)}, those of the model {schema.input_shape}")
    if x.ndim == 4 and x.dtype.name != schema.dtype:
        raise ValueError(f"{where} are images of {x.dtype}, those of the model of {schema.dtype}")
    return x


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
