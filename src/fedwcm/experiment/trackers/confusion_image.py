"""A confusion matrix as an image, for trackers that show images."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

SIDE = 480
"""Pixels of the matrix, or the next multiple of its classes."""

MOST_LABELLED = 25
"""Classes up to which rows and columns are named; up to half as many, cells have their numbers."""

LONGEST_NAME, LETTER = 14, 7
"""Letters of a class name that are shown, and pixels for each."""

DARK = (8, 69, 148)
"""The colour of a share of 1; of 0 it is white."""

FAINTEST = 0.15
"""Of the way to that colour, where the smallest share is: a single sample is no white cell."""

AXES = "rows: true class; columns: predicted class"


def confusion_image(confusion: Sequence[Sequence[int]], classes: Sequence[str]) -> NDArray[np.uint8]:
    """Rows are true classes, columns predicted ones; the darker, the larger the share of the true class."""
    counts = np.array(confusion)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    cell = max(1, -(-SIDE // len(counts)))
    shades = np.where(shares > 0, FAINTEST + (1 - FAINTEST) * shares, 0.0)
    colours = 255 - shades[..., np.newaxis] * (255 - np.array(DARK))
    matrix: NDArray[np.uint8] = colours.round().astype(np.uint8).repeat(cell, axis=0).repeat(cell, axis=1)
    if len(counts) > MOST_LABELLED:
        return matrix
    names = [name[:LONGEST_NAME] for name in classes]
    left = 10 + LETTER * max(map(len, names))
    image = Image.new("RGB", (left + len(matrix), 42 + len(matrix)), "white")
    image.paste(Image.fromarray(matrix), (left, 0))
    _label(image, shares, names, left, cell)
    return np.asarray(image)


def _label(image: Image.Image, shares: NDArray[np.float64], names: Sequence[str], left: int, cell: int) -> None:
    draw, font = ImageDraw.Draw(image), ImageFont.load_default()
    draw.text((left, image.height - 10), AXES, fill="black", font=font, anchor="lm")
    for i, name in enumerate(names):
        middle = cell * i + cell // 2
        draw.text((left - 6, middle), name, fill="black", font=font, anchor="rm")
        shown = name[: cell // LETTER] or name[:1]
        draw.text((left + middle, image.height - 30), shown, fill="black", font=font, anchor="mm")
        for j, share in enumerate(shares[i] if len(names) <= MOST_LABELLED // 2 else ()):
            if share:
                colour = "white" if share > 0.5 else "black"
                at = (left + cell * j + cell // 2, middle)
                draw.text(at, f"{share:.2f}", fill=colour, font=font, anchor="mm")
