"""Decode images with Pillow and put them into one array."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

GREY_MODES = ("1", "L", "LA")
COLOUR_MODES = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


def stack_images(images: Iterable[tuple[str, "Image"]], count: int) -> NDArray[np.uint8]:
    """Put `count` named images of one size into an array (count, height, width, channels).

    There is one channel if all images are grey, otherwise three. Transparency is dropped.
    """
    stack: NDArray[np.uint8] | None = None
    first_name = ""
    for i, (name, image) in enumerate(images):
        pixels = _pixels(name, image)
        if stack is None:
            first_name = name
            stack = np.zeros((count, *pixels.shape), dtype=np.uint8)
        if pixels.shape[:2] != stack.shape[1:3]:
            raise ValueError(
                f"{name} is {_size(pixels.shape[:2])} pixels but {first_name} is {_size(stack.shape[1:3])}: "
                "all images must have one size"
            )
        if pixels.shape[2] > stack.shape[3]:
            stack = np.repeat(stack, 3, axis=3)
        stack[i] = pixels  # broadcasting turns a grey image into a coloured one where needed
    if stack is None:
        raise ValueError("there are no images")
    return stack


def _pixels(name: str, image: "Image") -> NDArray[np.uint8]:
    if image.mode not in GREY_MODES + COLOUR_MODES:
        raise ValueError(f"{name} has mode {image.mode}: images must be grey or colour with 8 bits per channel")
    grey = image.mode in GREY_MODES
    try:
        pixels: NDArray[Any] = np.asarray(image.convert("L" if grey else "RGB"))
    except OSError as error:
        raise ValueError(f"{name} cannot be decoded: {error}") from error
    return pixels[..., np.newaxis] if grey else pixels


def _size(shape: tuple[int, ...]) -> str:
    height, width = shape
    return f"{width}x{height}"
