"""Inputs as the models take them: images channels first, numbers normalised, integers kept for embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedwcm.core.checks import require

Array = NDArray[Any]
Normalize = Literal["auto", "standard", "none"] | Sequence[float] | Sequence[Sequence[float]]

CHUNK = 1000
"""Samples converted at a time: beside the result, memory for so many is taken."""


@dataclass(frozen=True, eq=False)
class Normalizer:
    """x ↦ (x − mean) / std: per channel of images `(n, H, W, C)`, per last axis of everything else.

    Images come out with the channels first. One that keeps integers passes them on as they are, in 64 bits.
    """

    mean: NDArray[np.float32]
    std: NDArray[np.float32]
    keeps_integers: bool = False

    @classmethod
    def fit(cls, inputs: Array) -> "Normalizer":
        """The statistics of these inputs. A channel or column that never varies is only centred."""
        axes = tuple(range(inputs.ndim - 1))
        mean = inputs.mean(axis=axes, dtype=np.float64)
        chunks = (inputs[i : i + CHUNK] for i in range(0, len(inputs), CHUNK))
        squares = sum(np.square(chunk - mean).sum(axis=axes) for chunk in chunks)
        std = np.sqrt(squares / (inputs.size / mean.size))
        return cls(mean.astype(np.float32), np.where(std > 0, std, 1.0).astype(np.float32))

    def __call__(self, inputs: Array) -> Array:
        if self.keeps_integers:
            return _integers(inputs)
        is_image = inputs.ndim == 4
        shape = (len(inputs), inputs.shape[3], *inputs.shape[1:3]) if is_image else inputs.shape
        scaled = np.empty(shape, dtype=np.float32)
        for i in range(0, len(inputs), CHUNK):
            chunk = inputs[i : i + CHUNK].astype(np.float32)
            chunk -= self.mean
            chunk /= self.std
            scaled[i : i + CHUNK] = np.moveaxis(chunk, -1, 1) if is_image else chunk
        return scaled


def choose_normalizer(inputs: Array, how: Normalize, *, embeds: bool = False) -> tuple[Normalizer, str]:
    """The normalizer for these training inputs, and a sentence on what it does, for the log.

    Args:
        inputs: the training samples, as a `Dataset` holds them.
        how: `standard` (subtract the mean, divide by the standard deviation), `none`, a pair `[mean, std]` in the
            units of the data (0 to 255 for ordinary images), each a number or one per channel or column; or
            `auto`: integers that are not pixels stay integers if the model embeds them, everything else is
            `standard`.
        embeds: whether the model looks its inputs up in an embedding.
    """
    per = "channel" if inputs.ndim > 2 else "column"
    is_integer = inputs.ndim < 4 and inputs.dtype.kind in "iu"
    zero, one = np.zeros(1, np.float32), np.ones(1, np.float32)
    if how in ("auto", "none") and is_integer and embeds:
        text = "kept as integers, since the model looks them up in an embedding"
        return Normalizer(zero, one, keeps_integers=True), f"inputs: {text}"
    if how == "none":
        return Normalizer(zero, one), "inputs: taken as they are (data.normalize = none)"
    if how in ("auto", "standard"):
        note = ". They are integers: if they are ids and not measurements, use a model with an embedding"
        hint = note if is_integer and how == "auto" else ""
        text = f"standardised per {per} by mean and standard deviation of {len(inputs)} training samples"
        return Normalizer.fit(inputs), f"inputs: {text}{hint}"
    mean, std = _fixed(how, inputs.shape[-1])
    return Normalizer(mean, std), f"inputs: normalised with the mean and standard deviation given, per {per}"


def _fixed(how: Normalize, width: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    allowed = f"auto, standard, none, or [mean, std], each a number or a list of {width} numbers, std positive"
    try:
        mean, std = (np.atleast_1d(np.array(part, dtype=np.float32)) for part in how)
    except (TypeError, ValueError):
        require(False, "data.normalize", how, allowed)
        raise
    fits = all(part.shape in ((1,), (width,)) and np.isfinite(part).all() for part in (mean, std))
    require(bool(fits and (std > 0).all()), "data.normalize", how, allowed)
    return mean, std


def _integers(inputs: Array) -> NDArray[np.int64]:
    whole = np.asarray(inputs).astype(np.int64)
    wrong = np.argwhere(whole != inputs) if inputs.dtype.kind == "f" else np.empty((0, inputs.ndim), np.int64)
    if len(wrong):
        place = tuple(int(i) for i in wrong[0])
        raise ValueError(
            f"inputs{list(place)} is {inputs[place]}: the model takes whole numbers, for its embedding"
        )
    return whole
