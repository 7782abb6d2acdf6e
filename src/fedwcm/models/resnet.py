"""Residual networks of basic blocks (He et al., 2016): `resnet8`, `resnet18` and `resnet34`.

All take the same options:

- `norm`: "group" (no statistics to average over clients; works under `torch.vmap`) or "batch".
- `groups`: number of groups of the "group" norm; must divide `width`.
- `stem`: "imagenet" (7x7 convolution of stride 2, then 3x3 max-pool of stride 2) or "cifar" (3x3
  convolution of stride 1, no pool).
- `width`: channels of the stem and the first stage. Each further stage doubles the channels and halves the sides.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from fedwcm.core.checks import require, require_count, require_known
from fedwcm.models.base import Classifier
from fedwcm.models.checks import image_shape
from fedwcm.models.convolutions import LiveConv2d

NormLayer = Callable[[int], nn.Module]


def _norm_layer(norm: str, groups: int, width: int) -> NormLayer:
    require_known("norm", norm, ("group", "batch"))
    if norm == "batch":
        return nn.BatchNorm2d
    require_count("groups", groups)
    require(width % groups == 0, "groups", groups, f"a divisor of width = {width}")
    return partial(nn.GroupNorm, groups)


def _conv(before: int, after: int, kernel: int, stride: int) -> nn.Conv2d:
    """Return a convolution without bias (a norm follows), padded so that stride 1 preserves the sides."""
    return LiveConv2d(before, after, kernel, stride, padding=kernel // 2, bias=False)


def _imagenet_stem(channels: int, width: int, norm: NormLayer) -> nn.Sequential:
    pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
    return nn.Sequential(_conv(channels, width, 7, stride=2), norm(width), nn.ReLU(), pool)


def _cifar_stem(channels: int, width: int, norm: NormLayer) -> nn.Sequential:
    return nn.Sequential(_conv(channels, width, 3, stride=1), norm(width), nn.ReLU())


STEMS: dict[str, Callable[[int, int, NormLayer], nn.Sequential]] = {
    "imagenet": _imagenet_stem,
    "cifar": _cifar_stem,
}


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut, which is a 1x1 convolution if the shape changes."""

    def __init__(self, before: int, after: int, stride: int, norm: NormLayer) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            _conv(before, after, 3, stride), norm(after), nn.ReLU(), _conv(after, after, 3, 1), norm(after)
        )
        same_shape = stride == 1 and before == after
        self.shortcut = (
            nn.Identity() if same_shape else nn.Sequential(_conv(before, after, 1, stride), norm(after))
        )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(residual(x) + shortcut(x))."""
        out: Tensor = self.relu(self.residual(x) + self.shortcut(x))
        return out


def _stages(blocks: tuple[int, ...], width: int, norm: NormLayer) -> list[nn.Module]:
    """Return the blocks of all stages; each stage but the first starts by halving the sides."""
    before, stages = width, list[nn.Module]()
    for stage, count in enumerate(blocks):
        after = width * 2**stage
        for block in range(count):
            stride = 2 if stage > 0 and block == 0 else 1
            stages.append(BasicBlock(before, after, stride, norm))
            before = after
    return stages


class ResNet(Classifier):
    """Stem, one stage per entry of `blocks` (its number of basic blocks), global average pool, head."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        blocks: tuple[int, ...],
        *,
        norm: str,
        groups: int,
        stem: str,
        width: int,
        head: str,
    ) -> None:
        channels, _, _ = image_shape(input_shape)
        require_known("stem", stem, STEMS)
        require_count("width", width)
        norm_layer = _norm_layer(norm, groups, width)
        body = nn.Sequential(
            STEMS[stem](channels, width, norm_layer),
            *_stages(blocks, width, norm_layer),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        super().__init__(body, width * 2 ** (len(blocks) - 1), classes, head)
        # Only the convolutions: norm layers already start with weight 1 and bias 0.
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def resnet8(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    norm: str = "group",
    groups: int = 2,
    stem: str = "cifar",
    width: int = 64,
    head: str = "linear",
) -> ResNet:
    """Return the ResNet-8 of the long-tail literature: stages of 64, 128 and 256 channels, one block each.

    1,227,594 parameters for CIFAR-10.
    """
    return ResNet(input_shape, classes, (1, 1, 1), norm=norm, groups=groups, stem=stem, width=width, head=head)


def resnet18(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    norm: str = "group",
    groups: int = 2,
    stem: str = "imagenet",
    width: int = 64,
    head: str = "linear",
) -> ResNet:
    """Return a ResNet-18: 11,181,642 parameters for CIFAR-10 (11,173,962 with the "cifar" stem)."""
    return ResNet(input_shape, classes, (2, 2, 2, 2), norm=norm, groups=groups, stem=stem, width=width, head=head)


def resnet34(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    norm: str = "group",
    groups: int = 2,
    stem: str = "imagenet",
    width: int = 64,
    head: str = "linear",
) -> ResNet:
    """Return a ResNet-34: 21,289,802 parameters for CIFAR-10."""
    return ResNet(input_shape, classes, (3, 4, 6, 3), norm=norm, groups=groups, stem=stem, width=width, head=head)
