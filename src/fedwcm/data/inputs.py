"""Inputs as models take them: normalised, in advance or when they are read; flipped and cropped."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad as pad_sides

from fedwcm.core.batch import Inputs, LazyInputs
from fedwcm.core.checks import require
from fedwcm.core.types import Ints

Array = NDArray[Any]
Normalize = Literal["auto", "standard", "none"] | Sequence[float] | Sequence[Sequence[float]]

CHUNK, CHUNK_VALUES = 1000, 2**20
"""Samples, and values, converted at a time: beside the result, memory for this many is taken."""

COARSE = 0.01
"""Step of float32, as a share of a column's standard deviation, above which it loses too much."""

FAR = 1000
"""Standard deviations from the training mean above which a value is warned of."""

OTHER_SCALE, FEW_ROWS = 8, 20
"""How many times wider or narrower than in training inputs may spread, if there are enough of them to tell."""

PREPARED_BYTES = 2**28
"""Bytes up to which inputs are prepared in advance, as float32. Larger ones stay as they are stored."""

EVERY = slice(None)


@dataclass(frozen=True, eq=False)
class Normalizer:
    """x ↦ (x − mean) / std: per channel of images `(n, H, W, C)`, per last axis of everything else.

    Images come out with the channels first. One that keeps integers passes them on as they are, in 64 bits.
    """

    mean: NDArray[np.float32]
    std: NDArray[np.float32]
    keeps_integers: bool = False

    @classmethod
    def fit(cls, inputs: Array, rows: NDArray[np.int64] | None = None) -> "Normalizer":
        """Take the statistics of these inputs, or of some rows. A constant channel or column is only centred."""
        axes, chosen = tuple(range(inputs.ndim - 1)), np.arange(len(inputs)) if rows is None else rows
        count = len(chosen) * inputs[:1].size / inputs.shape[-1]
        mean = sum(chunk.sum(axis=axes, dtype=np.float64) for chunk in _iterate_chunks(inputs, chosen)) / count
        squares = sum(_square_deviations(chunk, mean).sum(axis=axes) for chunk in _iterate_chunks(inputs, chosen))
        std = np.sqrt(squares / count)
        _warn_of_coarse(mean, std)
        return cls(mean.astype(np.float32), np.where(std > 0, std, 1.0).astype(np.float32))

    def __call__(self, inputs: Array) -> Array:
        if self.keeps_integers:
            return _require_integers(inputs)
        is_image = inputs.ndim == 4
        shape = (len(inputs), inputs.shape[3], *inputs.shape[1:3]) if is_image else inputs.shape
        scaled = np.empty(shape, dtype=np.float32)
        size = _chunk_size(inputs) if len(inputs) else CHUNK
        for i in range(0, len(inputs), size):
            chunk = inputs[i : i + size].astype(np.float32)
            chunk -= self.mean
            chunk /= self.std
            scaled[i : i + size] = np.moveaxis(chunk, -1, 1) if is_image else chunk
        return scaled


def warn_of_other_scale(inputs: Array, normalizer: Normalizer, names: Sequence[str] = ()) -> None:
    """Warn of inputs of a trained model that are far from those of its training, such as other units."""
    is_unknown = normalizer.keeps_integers or ((normalizer.mean == 0) & (normalizer.std == 1)).all()
    if is_unknown or not len(inputs):
        return
    rows = inputs[:: -(-inputs.size // CHUNK_VALUES)].reshape(-1, inputs.shape[-1]).astype(np.float64)
    scaled = (rows - normalizer.mean) / normalizer.std
    farthest = np.abs(scaled).max(axis=0)
    # Columns that are constant in training are divided by 1; those of 0 and 1 are categories, without a unit.
    varies = (normalizer.std != 1) & ((rows != 0) & (rows != 1)).any(axis=0)
    spread = np.sqrt(scaled.var(axis=0).mean(where=varies)) if varies.any() else 1.0
    text = ""
    if farthest.max() > FAR:
        column = int(farthest.argmax())
        name = repr(names[column]) if names else f"{column} (the first is 0)"
        text = f"column {name} has a value {farthest[column]:.0f} standard deviations from the training mean"
    elif len(inputs) >= FEW_ROWS and not 1 / OTHER_SCALE <= spread <= OTHER_SCALE:
        text = f"they spread {spread:.2g} times as much as the training inputs"
    if text:
        warnings.warn(f"inputs: {text}: are they in the units of the training data?", stacklevel=4)


def _warn_of_coarse(mean: NDArray[np.float64], std: NDArray[np.float64]) -> None:
    """Warn of inputs far from 0 and close to each other, such as Unix times: float32 makes many of them equal."""
    steps = np.spacing(np.abs(mean).astype(np.float32))
    for i in np.flatnonzero((std > 0) & (steps > COARSE * std))[:1]:
        text = (
            f"inputs: column {i} (the first is 0) has the mean {mean[i]:g} and the standard deviation {std[i]:g}"
        )
        text += f", but float32 tells only multiples of {steps[i]:g} apart there: subtract a constant beforehand"
        warnings.warn(text, stacklevel=3)


def _iterate_chunks(inputs: Array, rows: NDArray[np.int64]) -> Iterator[Array]:
    """Yield these rows, a few at a time: as a whole, rows that are mapped from a file may not fit into memory."""
    size = _chunk_size(inputs)
    for i in range(0, len(rows), size):
        yield inputs[rows[i : i + size]]


def _square_deviations(chunk: Array, mean: NDArray[np.float64]) -> NDArray[np.float64]:
    difference = chunk - mean
    return np.square(difference, out=difference)


def _chunk_size(inputs: Array) -> int:
    return min(CHUNK, max(1, CHUNK_VALUES // inputs[:1].size))


def choose_normalizer(
    inputs: Array, how: Normalize, rows: NDArray[np.int64] | None = None, *, embeds: bool = False
) -> tuple[Normalizer, str]:
    """Return the normalizer for these training inputs, and a sentence on what it does, for the log.

    Args:
        inputs: the training samples, as a `Dataset` holds them.
        how: `standard` (subtract the mean, divide by the standard deviation), `none`, a pair `[mean, std]` in the
            units of the data (0 to 255 for ordinary images), each a number or one per channel or column; or
            `auto`: integers that are not pixels stay integers if the model embeds them, everything else is
            `standard`.
        rows: those that are trained on; by default all.
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
        used = len(inputs) if rows is None else len(rows)
        text = f"standardised per {per} by mean and standard deviation of {used} training samples"
        return Normalizer.fit(inputs, rows), f"inputs: {text}{hint}"
    mean, std = _read_pair(how, inputs.shape[-1])
    return Normalizer(mean, std), f"inputs: normalised with the mean and standard deviation given, per {per}"


def _read_pair(how: Normalize, width: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    allowed = f"auto, standard, none, or [mean, std], each a number or a list of {width} numbers, std positive"
    try:
        mean, std = (np.atleast_1d(np.array(part, dtype=np.float32)) for part in how)
    except (TypeError, ValueError):
        require(False, "data.normalize", how, allowed)
        raise
    fits = all(part.shape in ((1,), (width,)) and np.isfinite(part).all() for part in (mean, std))
    require(bool(fits and (std > 0).all()), "data.normalize", how, allowed)
    return mean, std


def _require_integers(inputs: Array) -> NDArray[np.int64]:
    whole = np.asarray(inputs).astype(np.int64)
    wrong = np.argwhere(whole != inputs) if inputs.dtype.kind == "f" else np.empty((0, inputs.ndim), np.int64)
    if len(wrong):
        place = tuple(int(i) for i in wrong[0])
        raise ValueError(
            f"inputs{list(place)} is {inputs[place]}: the model takes whole numbers, for its embedding"
        )
    return whole


@dataclass(frozen=True, eq=False)
class Preparation:
    """What `Normalizer` does to an array, on a tensor of stored samples; the results are equal to the bit."""

    mean: Tensor
    std: Tensor
    keeps_integers: bool

    @classmethod
    def of(cls, normalizer: Normalizer, is_image: bool, device: torch.device) -> "Preparation":
        """Return the preparation of images `(n, H, W, C)`, whose channels come first then, or of anything else."""
        shape = (-1, 1, 1) if is_image else (-1,)
        mean, std = (torch.from_numpy(each).view(shape).to(device) for each in (normalizer.mean, normalizer.std))
        return cls(mean, std, normalizer.keeps_integers)

    def __call__(self, stored: Tensor) -> Tensor:
        if self.keeps_integers:
            return stored.long()
        channels_first = stored.permute(0, 3, 1, 2) if self.mean.dim() == 3 else stored
        scaled = channels_first.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
        return scaled.sub_(self.mean).div_(self.std)


def are_small(x: NDArray[Any], rows: int) -> bool:
    """Return whether this many samples of an array are few enough to be prepared in advance."""
    return 4 * rows * x[:1].size <= PREPARED_BYTES


def model_inputs(
    x: NDArray[Any],
    normalizer: Normalizer,
    device: torch.device,
    rows: NDArray[np.int64] | slice = EVERY,
    *,
    prepared: bool,
) -> Inputs:
    """Return what a model gets of an array of samples, in the form in which a `Dataset` holds them.

    Either these are the chosen rows, prepared. Or they are *all* rows of the array, which is not copied, whether
    it is in memory or mapped from a file; what is read of them is prepared then.
    """
    # Floats for a model that takes integers have to be checked first.
    if prepared or (normalizer.keeps_integers and x.dtype.kind == "f"):
        return torch.from_numpy(normalizer(x[rows])).to(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an array that must not be written to: nobody does
        stored = torch.from_numpy(x).to(device)
    return LazyInputs(stored, Preparation.of(normalizer, x.ndim == 4, device))


@dataclass(frozen=True)
class FlipCrop:
    """Random flip and crop of images `(K, b, C, H, W)`, on the batch tensor.

    Each image is mirrored with probability 1/2 and, with probability 1/2, padded by `pad` zeros on every side
    (zero is the mean, since inputs are normalised) and cut back to its size at a random place.
    """

    pad: int = 4

    def draw(self, rng: np.random.Generator, steps: int, batch_size: int) -> Ints:
        """Draw for every image whether to flip it and the corner to cut from: `(steps, batch_size, 3)`."""
        shape = (steps, batch_size)
        flip = rng.integers(2, size=shape)
        corner = rng.integers(2 * self.pad + 1, size=(*shape, 2))
        stays = rng.integers(2, size=(*shape, 1)) == 0
        return np.concatenate([flip[..., None], np.where(stays, self.pad, corner)], axis=-1)

    def apply(self, inputs: Tensor, draws: Tensor) -> Tensor:
        """Mirror the images along the last axis, then cut them from the padded picture, as drawn."""
        flip, top, left = draws.unbind(dim=-1)
        height, width = inputs.shape[-2:]
        rows = top[..., None] + torch.arange(height, device=inputs.device)
        columns = left[..., None] + torch.arange(width, device=inputs.device)
        flipped = torch.where(flip[..., None, None, None].bool(), inputs.flip(-1), inputs)
        padded = pad_sides(flipped, (self.pad,) * 4)
        clients = torch.arange(inputs.shape[0], device=inputs.device)[:, None, None, None, None]
        images = torch.arange(inputs.shape[1], device=inputs.device)[:, None, None, None]
        channels = torch.arange(inputs.shape[2], device=inputs.device)[:, None, None]
        return padded[clients, images, channels, rows[:, :, None, :, None], columns[:, :, None, None, :]]
