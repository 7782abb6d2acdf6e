"""Small convolutional network: for colour images of moderate size."""

from math import ceil

from torch import nn

from fedwcm.models.base import Classifier
from fedwcm.models.checks import image_shape

CHANNELS = (32, 64, 64)
FEATURES = 64


class CNN(Classifier):
    """Three blocks of 3x3 convolution + ReLU + 2x2 max-pool (32, 64, 64 channels), linear 64 + ReLU, head.

    Each pool halves the sides, rounding up, so that any image from 1x1 up is accepted. With ten classes:
    122,570 parameters for CIFAR-10 (3x32x32), 121,994 for Fashion-MNIST (1x28x28).
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int, head: str = "linear") -> None:
        before, height, width = image_shape(input_shape)
        layers: list[nn.Module] = []
        for channels in CHANNELS:
            layers += [
                nn.Conv2d(before, channels, kernel_size=3, padding=1),
                nn.ReLU(),
                nn.MaxPool2d(kernel_size=2, ceil_mode=True),
            ]
            before = channels
        shrink = 2 ** len(CHANNELS)
        pixels = ceil(height / shrink) * ceil(width / shrink)
        layers += [nn.Flatten(), nn.Linear(before * pixels, FEATURES), nn.ReLU()]
        super().__init__(nn.Sequential(*layers), FEATURES, classes, head)
