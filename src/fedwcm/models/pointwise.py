"""1x1 convolutions with a stride, kept away from a kernel of oneDNN that computes their gradients wrongly.

For the weight gradient of such a convolution over few channels, oneDNN writes past the end of its workspace
(uxlfoundation/oneDNN issue 6035): a wrong gradient, a crash or a hang. To pick the pixels first and then convolve
them with stride 1 is the same function, and calls another kernel. `docs/models.md` has what was measured.

Pixels are picked by an average over windows of one pixel. `x[..., ::2, ::2]` is the same, but its gradient takes
two passes over memory, which made steps of narrow ResNets up to a tenth slower.
"""

import warnings
from typing import TypeGuard

from torch import Tensor, nn
from torch.nn.functional import avg_pool1d, avg_pool2d, conv1d, conv2d

# The workspace is too small for fewer channels than a vector register holds floats: 8 of AVX2, 16 of AVX-512.
NARROW = 16

Strided = nn.Conv1d | nn.Conv2d | nn.ConvTranspose1d | nn.ConvTranspose2d


class SubsampledConv1d(nn.Conv1d):
    """`nn.Conv1d`, which picks the elements first where its kernel is of size 1 and has a stride."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of the input."""
        if not _is_strided_pointwise(self):
            return super().forward(input)
        return conv1d(avg_pool1d(input, 1, self.stride), self.weight, self.bias)


class SubsampledConv2d(nn.Conv2d):
    """`nn.Conv2d`, which picks the pixels first where its kernel is 1x1 and has a stride."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of the input."""
        if not _is_strided_pointwise(self):
            return super().forward(input)
        return conv2d(avg_pool2d(input, 1, self.stride), self.weight, self.bias)


def subsample_strided_pointwise(model: nn.Module) -> None:
    """Let every layer that oneDNN may differentiate wrongly pick its pixels first; a warning names them.

    Only the classes of those layers change: their parameters, names and outputs stay. A layer of a class that is
    not PyTorch's own may compute something else in its `forward`, and a transposed convolution has no such form:
    these are a ValueError. A call of `torch.nn.functional.conv2d` is no layer, and is not found.
    """
    found = {name: layer for name, layer in model.named_modules() if _is_endangered(layer)}
    for name, layer in found.items():
        if type(layer) not in (nn.Conv1d, nn.Conv2d):
            raise ValueError(
                f"the model's layer {name!r} = {layer} is a 1x1 convolution with a stride, over fewer than "
                f"{NARROW} channels. oneDNN may compute its gradient wrongly, and a {type(layer).__name__} cannot "
                "be replaced: take every stride-th pixel before a convolution of stride 1 (see docs/models.md)"
            )
        layer.__class__ = SubsampledConv1d if isinstance(layer, nn.Conv1d) else SubsampledConv2d
    if found:
        warnings.warn(
            "oneDNN may differentiate 1x1 convolutions with a stride wrongly. Layers of this model that therefore "
            f"pick their pixels first, with the same outputs: {', '.join(map(repr, found))} (see docs/models.md)",
            stacklevel=3,
        )


def _is_endangered(layer: nn.Module) -> TypeGuard[Strided]:
    """Whether oneDNN may be asked for the gradient that it computes wrongly."""
    if isinstance(layer, (SubsampledConv1d, SubsampledConv2d)) or not isinstance(layer, Strided):
        return False
    # The gradient of a transposed convolution is that of a convolution from its outputs to its inputs.
    transposed = isinstance(layer, (nn.ConvTranspose1d, nn.ConvTranspose2d))
    channels = layer.out_channels if transposed else layer.in_channels
    return channels < NARROW and _is_strided_pointwise(layer)


def _is_strided_pointwise(layer: Strided) -> bool:
    unpadded = layer.padding == "valid" or not any(layer.padding)
    return max(layer.kernel_size) == 1 and max(layer.stride) > 1 and unpadded and layer.groups == 1
