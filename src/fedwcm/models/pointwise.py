"""Workaround for an oneDNN kernel that computes wrong gradients of strided 1x1 convolutions.

For the weight gradient of such a convolution over few channels, oneDNN writes past the end of its workspace
(uxlfoundation/oneDNN issue 6035): the result is a wrong gradient, a crash or a hang. Subsampling the pixels first
and then convolving them with stride 1 is the same function and uses a different kernel. `docs/models.md` has the
measurements.

An average pool over windows of one pixel does the subsampling. `x[..., ::2, ::2]` is the same, but its gradient
takes two passes over memory, which made training steps of narrow ResNets up to 10 % slower.
"""

import warnings
from typing import TypeGuard

from torch import Tensor, nn
from torch.nn.functional import avg_pool1d, avg_pool2d, conv1d, conv2d

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
    found = {name: layer for name, layer in model.named_modules() if _is_endangered(layer)}
    for name, layer in found.items():
        if type(layer) not in (nn.Conv1d, nn.Conv2d):
            raise ValueError(
                f"the model's layer {name!r} = {layer} is a strided 1x1 convolution over fewer than {NARROW} "
                f"channels. oneDNN may compute a wrong gradient of it, and a {type(layer).__name__} cannot be "
                "replaced: subsample first, and convolve with stride 1 (see docs/models.md)"
            )
        layer.__class__ = SubsampledConv1d if isinstance(layer, nn.Conv1d) else SubsampledConv2d
    if found:
        warnings.warn(
            "oneDNN may compute wrong gradients of strided 1x1 convolutions. Layers of this model that therefore "
            f"subsample first, with the same outputs: {', '.join(map(repr, found))} (see docs/models.md)",
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
