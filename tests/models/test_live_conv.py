"""Leaving out the taps that never meet data changes neither outputs nor gradients."""

from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d

from fedwcm.models.convolutions import LiveConv2d, SubsampledConv2d
from fedwcm.models.resnet import resnet18


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [1, 2, 3, 5, 7])
def test_outputs_and_gradients_are_those_of_a_plain_convolution(kernel: int, stride: int) -> None:
    torch.manual_seed(0)
    live = LiveConv2d(3, 4, kernel, stride, kernel // 2, bias=kernel > 2).double()
    for side in [(1, 1), (2, 2), (1, 3), (4, 2), (3, 3), (6, 5)]:
        x = torch.randn(2, 3, *side, dtype=torch.float64, requires_grad=True)
        mine, plain = live(x), conv2d(x, live.weight, live.bias, stride, kernel // 2)
        weight, inputs = torch.randn_like(plain), [x, *live.parameters()]
        ours, theirs = (torch.autograd.grad((y * weight).sum(), inputs) for y in (mine, plain))
        torch.testing.assert_close((mine, *ours), (plain, *theirs), rtol=1e-12, atol=1e-12)


def test_dead_taps_have_a_gradient_of_exactly_zero() -> None:
    live = LiveConv2d(3, 4, 3, 1, 1, bias=False)
    live(torch.randn(2, 3, 1, 1)).sum().backward()
    assert live.weight.grad is not None
    assert (live.weight.grad[:, :, 1, 1] != 0).all()
    live.weight.grad[:, :, 1, 1] = 0
    assert (live.weight.grad == 0).all()


def test_the_last_stage_of_resnet18_on_small_images_computes_live_taps_only() -> None:
    model = resnet18((3, 32, 32), 10, width=8)
    with patch.object(SubsampledConv2d, "forward", autospec=True, side_effect=SubsampledConv2d.forward) as whole:
        model(torch.randn(2, 3, 32, 32))
    assert sum(isinstance(m, nn.Conv2d) for m in model.modules()) - whole.call_count == 5
