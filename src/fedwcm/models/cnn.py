"""Small convolutional network: for colour images of moderate size."""

from math import ceil

from torch import nn

from fedwcm.core.checks import require_count
from fedwcm.models.base import Classifier
from fedwcm.models.checks import image_shape


class CNN(Classifier):
    """Three blocks of 3x3 convolution + 2x2 max-pool + ReLU (32, 64, 64 channels), linear 64 + ReLU, head.

    `width` is the number of channels of the first block; the others, and the features, are twice as many.
    Each pool halves the sides, rounding up, so that any image from 1x1 up is accepted. With ten classes:
    122,570 parameters for CIFAR-10 (3x32x32), 121,994 for Fashion-MNIST (1x28x28).
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int, width: int = 32, head: str = "linear") -> None:
        require_count("width", width)
        before, rows, columns = image_shape(input_shape)
        blocks, features = (width, 2 * width, 2 * width), 2 * width
        layers: list[nn.Module] = []
        for channels in blocks:
            layers += [
                nn.Conv2d(before, channels, kernel_size=3, padding=1),
                nn.MaxPool2d(kernel_size=2, ceil_mode=True),
                nn.ReLU(),  # after the pool: values and gradients as before it, on a quarter of the numbers
            ]
            before = channels
        shrink = 2 ** len(blocks)
        pixels = ceil(rows / shrink) * ceil(columns / shrink)
        layers += [nn.Flatten(), nn.Linear(before * pixels, features), nn.ReLU()]
        super().__init__(nn.Sequential(*layers), features, classes, head)
