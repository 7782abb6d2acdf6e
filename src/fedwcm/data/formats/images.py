"""Decode images with Pillow and put them into one array."""

import io
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from fedwcm.data.formats.safety import CEILING, reading, require_bounded
from fedwcm.data.large_arrays import to_colour, zeros

GREY_MODES = ("1", "L", "LA")
COLOUR_MODES = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")

MAX_PIXELS = 2**26
"""Pixels that an image may have: 8192 x 8192."""

NOT_READ = frozenset({"EPS", "BUFR", "GRIB", "HDF5", "MPEG", "WMF"})
"""What Pillow lists and does not decode by itself. EPS is a program, which it would give to Ghostscript."""


@cache
def image_formats() -> tuple[str, ...]:
    """Return the formats that are read: those that Pillow decodes."""
    Image.init()
    return tuple(sorted(set(Image.OPEN) - NOT_READ))


@cache
def image_suffixes() -> tuple[str, ...]:
    """Return the endings of the files that are read as images."""
    known = image_formats()
    return tuple(sorted(suffix for suffix, kind in Image.registered_extensions().items() if kind in known))


def open_image(name: str, content: bytes) -> Image.Image:
    """Open an image, without decoding it, after a look at the size that it claims."""
    with reading(name):
        try:
            image = Image.open(io.BytesIO(content), formats=image_formats())
        except UnidentifiedImageError as error:
            raise ValueError(f"{name} is not an image that can be read") from error
        pixels = image.width * image.height
        if pixels > MAX_PIXELS:
            raise ValueError(f"{name} has {image.width}x{image.height} pixels: at most {MAX_PIXELS} are decoded")
        require_bounded(name, pixels * len(image.getbands()), len(content))
    return image


def stack_images(
    images: Iterable[tuple[str, Image.Image]], count: int, *, size: int | None = None, stored: int = CEILING
) -> NDArray[np.uint8]:
    """Put `count` named images into an array (count, height, width, channels).

    There is one channel if all images are grey, otherwise three. Transparency is dropped. With a `size`, every
    image is scaled until its shorter side has that many pixels and cut to a square around its centre; without,
    all images must have one size. `stored` is the size of all files together, which bounds that of the array.
    """
    stack: NDArray[np.uint8] | None = None
    first_name = ""
    for i, (name, image) in enumerate(images):
        pixels = _decode_pixels(name, image, size)
        if stack is None:
            first_name = name
            require_bounded(f"the folder of {name}", count * pixels.nbytes, stored)
            stack = zeros((count, *pixels.shape), np.uint8)
        if pixels.shape[:2] != stack.shape[1:3]:
            raise ValueError(
                f"{name} is {_format_size(pixels.shape[:2])} pixels but {first_name} is "
                f"{_format_size(stack.shape[1:3])}: images must have one size, or be brought to one with "
                "--image-size N (image_size=N)"
            )
        if pixels.shape[2] > stack.shape[3]:
            require_bounded(f"the folder of {name}", count * pixels.nbytes, stored)
            stack = to_colour(stack)
        stack[i] = pixels  # broadcasting turns a grey image into a coloured one where needed
    if stack is None:
        raise ValueError("there are no images")
    return stack


def _decode_pixels(name: str, image: Image.Image, size: int | None) -> NDArray[np.uint8]:
    if image.mode not in GREY_MODES + COLOUR_MODES:
        raise ValueError(f"{name} has mode {image.mode}: images must be grey or colour with 8 bits per channel")
    grey = image.mode in GREY_MODES
    try:
        decoded = image.convert("L" if grey else "RGB")
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error, … on a damaged file
        raise ValueError(f"{name} cannot be decoded: {error}") from error
    if size is not None:
        decoded = ImageOps.fit(decoded, (size, size), method=Image.Resampling.BILINEAR)
    pixels: NDArray[Any] = np.asarray(decoded)
    return pixels[..., np.newaxis] if grey else pixels


def _format_size(shape: tuple[int, ...]) -> str:
    height, width = shape
    return f"{width}x{height}"
