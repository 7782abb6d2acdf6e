"""Deep in a ResNet with BatchNorm, a gradient may differ from machine to machine without any fault below it.

Where one pixel of two images is left, BatchNorm divides two numbers by their own spread: its outputs are +1 and
-1, and the gradient through it is what rounding leaves of a difference of equal numbers.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedwcm.models.resnet import ResNet, resnet34

SIDE = 16  # of the images: one pixel is left after the first half of the blocks
DEEP = "body.12.residual.3.weight"


def narrow_resnet34() -> ResNet:
    torch.manual_seed(0)
    return resnet34((3, SIDE, SIDE), 10, norm="batch", width=24)


def batch(size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(size, 3, SIDE, SIDE, generator=generator), torch.arange(size)


def float64_gradient(size: int, disturbance: float) -> Tensor:
    """The gradient of a deep layer, with all parameters changed by this part of them."""
    model, (x, y) = narrow_resnet34().double(), batch(size)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + disturbance * torch.randn_like(parameter))
    cross_entropy(model(x.double()), y).backward()
    return model.get_parameter(DEEP).grad  # type: ignore[return-value]


def sensitivity(size: int) -> float:
    exact, disturbed = (float64_gradient(size, disturbance) for disturbance in (0, torch.finfo(torch.float32).eps))
    return float((disturbed - exact).norm() / exact.norm())


def test_rounding_of_parameters_changes_a_gradient_through_batch_norm_over_two() -> None:
    assert sensitivity(2) > 0.02
    assert sensitivity(8) < 1e-3


def test_every_convolution_below_it_is_right_all_the_same() -> None:
    model, (x, y) = narrow_resnet34(), batch(2)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)}
    met: dict[nn.Module, list[Tensor]] = {}

    def note(layer: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        met[layer] = [arguments[0].detach().double()]
        output.register_hook(lambda by_output: met[layer].append(by_output.double()))

    for layer in layers.values():
        layer.register_forward_hook(note)
    cross_entropy(model(x.contiguous(memory_format=torch.channels_last)), y).backward()
    for name, layer in layers.items():
        exact = weight_gradient(layer, *met[layer])
        magnitude = weight_gradient(layer, *(tensor.abs() for tensor in met[layer]))
        assert layer.weight.grad is not None
        assert ((layer.weight.grad - exact).abs() <= 1e-5 * magnitude).all(), name


def weight_gradient(layer: nn.Conv2d, x: Tensor, by_output: Tensor) -> Tensor:
    """From the layer's input and the gradient by its output, both in float64."""
    shape = layer.weight.shape
    return nn.grad.conv2d_weight(x, shape, by_output, layer.stride, layer.padding)  # type: ignore[attr-defined]
