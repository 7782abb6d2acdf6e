"""Inputs as the engine reads them: prepared in advance or when they are read, flipped and cropped."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad as pad_sides

from fedwcm.core.batch import Inputs, LazyInputs
from fedwcm.core.types import Ints
from fedwcm.data.normalize import Normalizer

PREPARED_BYTES = 2**28
"""Bytes up to which inputs are prepared in advance, as float32. Larger ones stay as they are stored."""

EVERY = slice(None)


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
