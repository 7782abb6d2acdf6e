"""Convolutions that skip what is padding, and that avoid an oneDNN kernel with wrong gradients.

For the weight gradient of a strided 1x1 convolution over few channels, oneDNN writes past the end of its workspace
(uxlfoundation/oneDNN issue 6035): the result is a wrong gradient, a crash or a hang. Subsampling the pixels first
and then convolving them with stride 1 is the same function and uses a different kernel. `docs/models.md` has the
measurements.

An average pool over windows of one pixel does the subsampling. `x[..., ::2, ::2]` is the same, but its gradient
takes two passes over memory, which made training steps of narrow ResNets up to 10 % slower.
"""

import warnings
from typing import TypeGuard

from torch import Tensor, nn
from torch.nn.functional import avg_pool1d, avg_pool2d, conv1d, conv2d, linear

# The workspace is too small for fewer channels than a vector register holds floats: 8 of AVX2, 16 of AVX-512.
NARROW = 16

Strided = nn.Conv1d | nn.Conv2d | nn.ConvTranspose1d | nn.ConvTranspose2d


class SubsampledConv1d(nn.Conv1d):
    """`nn.Conv1d` that subsamples its input first if its kernel has size 1 and a stride."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of the input."""
        if not _is_strided_pointwise(self):
            return super().forward(input)
        return conv1d(avg_pool1d(input, 1, self.stride), self.weight, self.bias)


class SubsampledConv2d(nn.Conv2d):
    """`nn.Conv2d` that subsamples its input first if its kernel is 1x1 and has a stride."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of the input."""
        if not _is_strided_pointwise(self):
            return super().forward(input)
        return conv2d(avg_pool2d(input, 1, self.stride), self.weight, self.bias)


def subsample_strided_pointwise(model: nn.Module) -> None:
    """Make every layer that oneDNN may differentiate wrongly subsample first; a warning names these layers.

    Only the classes of these layers change; their parameters, names and outputs stay the same. A layer of a class
    that is not PyTorch's own may compute something else in its `forward`, and a transposed convolution has no such
    form: both raise ValueError. Direct calls of `torch.nn.functional.conv2d` are not detected.
    """
    endangered = {name: layer for name, layer in model.named_modules() if _is_endangered(layer)}
    for name, layer in endangered.items():
        if type(layer) not in (nn.Conv1d, nn.Conv2d):
            raise ValueError(
                f"the model's layer {name!r} = {layer} is a strided 1x1 convolution over fewer than {NARROW} "
                f"channels. oneDNN may compute a wrong gradient of it, and a {type(layer).__name__} cannot be "
                "replaced: subsample first, and convolve with stride 1 (see docs/models.md)"
            )
        layer.__class__ = SubsampledConv1d if isinstance(layer, nn.Conv1d) else SubsampledConv2d
    if endangered:
        warnings.warn(
            "oneDNN may compute wrong gradients of strided 1x1 convolutions. Layers of this model that therefore "
            f"subsample first, with the same outputs: {', '.join(map(repr, endangered))} (see docs/models.md)",
            stacklevel=3,
        )


def _is_endangered(layer: nn.Module) -> TypeGuard[Strided]:
    """Return whether oneDNN may compute a wrong gradient for this layer."""
    if isinstance(layer, (SubsampledConv1d, SubsampledConv2d)) or not isinstance(layer, Strided):
        return False
    # The gradient of a transposed convolution is that of a convolution from its outputs to its inputs.
    transposed = isinstance(layer, (nn.ConvTranspose1d, nn.ConvTranspose2d))
    channels = layer.out_channels if transposed else layer.in_channels
    return channels < NARROW and _is_strided_pointwise(layer)


def _is_strided_pointwise(layer: Strided) -> bool:
    unpadded = layer.padding == "valid" or not any(layer.padding)
    return max(layer.kernel_size) == 1 and max(layer.stride) > 1 and unpadded and layer.groups == 1


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
        pixels = x.movedim(1, -1)[:, self._pixels_under(rows), self._pixels_under(columns)].flatten(1)
        return linear(pixels, live, self.bias)[:, :, None, None]

    def _gives_one_pixel(self, side: int) -> bool:
        return 0 <= side + 2 * self._padding - self._kernel < self._stride

    def _live(self, side: int) -> slice:
        """Return the taps that see a pixel of a map of this side, with the kernel at its first position."""
        return slice(self._padding, min(self._kernel, self._padding + side))

    def _pixels_under(self, taps: slice) -> slice:
        """Return the pixels under these taps."""
        return slice(0, taps.stop - self._padding)
