"""Flip and crop images at random, on the batch tensor.

Each image is mirrored with probability 1/2 and, with probability 1/2, padded by `pad` zeros on every side (zero is
the mean, since inputs are normalised) and cut back to its size at a random place.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad as pad_sides

from fedwcm.core.types import Ints


@dataclass(frozen=True)
class FlipCrop:
    """Random flip and crop of images `(K, b, C, H, W)`."""

    pad: int = 4

    def draw(self, rng: np.random.Generator, steps: int, batch_size: int) -> Ints:
        """Whether to flip, and the corner to cut from, of every image: `(steps, batch_size, 3)`."""
        shape = (steps, batch_size)
        flip = rng.integers(2, size=shape)
        corner = rng.integers(2 * self.pad + 1, size=(*shape, 2))
        stays = rng.integers(2, size=(*shape, 1)) == 0
        return np.concatenate([flip[..., None], np.where(stays, self.pad, corner)], axis=-1)

    def apply(self, inputs: Tensor, draws: Tensor) -> Tensor:
        """The images as drawn: mirrored along the last axis, then cut from the padded picture."""
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
