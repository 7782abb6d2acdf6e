"""Convolutions that skip the kernel taps that only ever see padding.

Deep in a network, a feature map may be smaller than the kernel: on a map of one pixel, eight of the nine taps of a
padded 3x3 kernel multiply padding. Their contribution and their gradient are exactly zero. In ResNet-18 on 32x32
images they take about a quarter of a training step.
"""

from torch import Tensor
from torch.nn.functional import linear

from fedwcm.models.pointwise import SubsampledConv2d


class LiveConv2d(SubsampledConv2d):
    """`SubsampledConv2d` without groups or dilation, padded with zeros.

    Where only one pixel comes out, it is a linear function of the pixels under the kernel, and is computed so.
    """

    def __init__(self, before: int, after: int, kernel: int, stride: int, padding: int, *, bias: bool) -> None:
        super().__init__(before, after, kernel, stride, padding, bias=bias)
        self._kernel, self._stride, self._padding = kernel, stride, padding

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of x."""
        height, width = x.shape[-2:]
        if not (self._gives_one_pixel(height) and self._gives_one_pixel(width)):
            return super().forward(x)
        rows, columns = self._live(height), self._live(width)
        live = self.weight.movedim(1, -1)[:, rows, columns].flatten(1)
        met = x.movedim(1, -1)[:, self._met(rows), self._met(columns)].flatten(1)
        return linear(met, live, self.bias)[:, :, None, None]

    def _gives_one_pixel(self, side: int) -> bool:
        return 0 <= side + 2 * self._padding - self._kernel < self._stride

    def _live(self, side: int) -> slice:
        """Return the taps that see a pixel of a map of this side, with the kernel at its first position."""
        return slice(self._padding, min(self._kernel, self._padding + side))

    def _met(self, taps: slice) -> slice:
        """Return the pixels under these taps."""
        return slice(0, taps.stop - self._padding)
