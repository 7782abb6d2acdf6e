"""Multi-layer perceptron: for tables and small grey images."""

from collections.abc import Sequence
from math import prod

from torch import nn

from fedwcm.core.checks import require, require_count
from fedwcm.models.base import Classifier


class MLP(Classifier):
    """Flatten, one linear + ReLU layer per width in `hidden`, then the head.

    784-200-200-10 (28x28 grey images, ten classes) has 199,210 parameters. An empty `hidden` gives
    softmax regression.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        hidden: Sequence[int] = (200, 200),
        head: str = "linear",
    ) -> None:
        require(isinstance(hidden, (list, tuple)), "hidden", hidden, "a list of layer widths, such as [200, 200]")
        layers: list[nn.Module] = [nn.Flatten()]
        before = prod(input_shape)
        for width in hidden:
            require_count(f"hidden = {hidden!r}, width", width)
            layers += [nn.Linear(before, width), nn.ReLU()]
            before = width
        super().__init__(nn.Sequential(*layers), before, classes, head)
