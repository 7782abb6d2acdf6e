"""1x1 convolutions with a stride: the same function, without the call that oneDNN gets wrong."""

import copy
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.utils._python_dispatch import TorchDispatchMode

from fedwcm.engine.network import Network
from fedwcm.models import MODELS, build_model
from fedwcm.models.convolutions import NARROW, SubsampledConv1d, SubsampledConv2d

Stride = int | tuple[int, ...]


class StridedPointwiseCalls(TorchDispatchMode):
    """Counts the 1x1 convolutions with a stride that reach PyTorch's kernels, on any machine."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.ops.aten.convolution.default:
            _, weight, _, stride, *_ = args
            self.count += weight.shape[2:].numel() == 1 and max(stride) > 1
        return func(*args, **(kwargs or {}))


def strided_pointwise_calls(model: nn.Module, x: Tensor) -> int:
    with StridedPointwiseCalls() as calls:
        model(x)
    return calls.count


class Own(nn.Module):
    """A user's model with two such layers, one of them used twice, and some that are sound as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.short = nn.Conv2d(4, 4, 1, stride=2)
        self.residual = nn.Conv2d(4, 4, 3, stride=2, padding=1, bias=False)
        self.further = nn.Sequential(nn.Conv2d(4, NARROW, 1, stride=(2, 1), bias=False))
        self.wide = nn.Conv2d(NARROW, 8, 1, stride=2)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.relu(self.short(x) + self.residual(x))
        x = self.further(self.short(x))
        return self.head(self.wide(x).mean((-2, -1)))


@contextmanager
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def own(seed: int = 0) -> Own:
    torch.manual_seed(seed)
    return Own()


def cured(seed: int = 0) -> Own:
    model = own(seed)
    with pytest.warns(UserWarning, match=r"subsample first.*: 'short', 'further\.0' \("):
        Network(model)
    return model


def gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    model(x).square().sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}  # type: ignore[misc]


def assert_same_function(one: nn.Module, other: nn.Module, x: Tensor) -> None:
    one, other = (copy.deepcopy(model).double() for model in (one, other))
    torch.testing.assert_close(one(x), other(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients(one, x), gradients(other, x), rtol=1e-12, atol=1e-12)


# The layers


@pytest.mark.parametrize(("padding", "bias"), [(0, True), ("valid", False), (1, True)])
@pytest.mark.parametrize(("kernel", "stride"), [(1, 2), (1, 3), (1, (1, 2)), (1, (3, 2)), (1, 1), (3, 2)])
def test_layer_is_a_plain_convolution(kernel: int, stride: Stride, padding: int | str, bias: bool) -> None:
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    layer = SubsampledConv2d(3, 4, kernel, stride, padding, bias=bias)  # type: ignore[arg-type]
    plain = nn.Conv2d(3, 4, kernel, stride, padding, bias=bias)  # type: ignore[arg-type]
    plain.load_state_dict(layer.state_dict())
    assert_same_function(layer, plain, x)
    if not isinstance(stride, tuple):
        layer, plain = (kind(3, 4, kernel, stride, padding, bias=bias) for kind in (SubsampledConv1d, nn.Conv1d))  # type: ignore[assignment]
        plain.load_state_dict(layer.state_dict())
        assert_same_function(layer, plain, x[:, :, 0])


def test_layer_takes_one_image_without_a_batch() -> None:
    layer, x = SubsampledConv2d(3, 4, 1, 2), torch.randn(3, 6, 6)
    torch.testing.assert_close(layer(x), layer(x[None])[0])


# Models of this package


@pytest.mark.parametrize("name", [name for name in MODELS if name != "mlp"])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_no_model_calls_a_strided_pointwise_convolution(name: str, shape: tuple[int, int, int]) -> None:
    options = [{"width": 4, "stem": "cifar"}, {"width": 16, "stem": "imagenet"}]
    for chosen in [{}] if name == "cnn" else options:
        model = build_model(name, shape, 10, 0, **chosen)
        assert strided_pointwise_calls(model, torch.randn(2, *shape)) == 0
        with no_warnings():
            Network(model)


# Models of a user


def test_own_layers_are_found_and_replaced_by_the_same_function() -> None:
    model, x = cured(), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    assert_same_function(model, own(), x)
    assert type(model.wide) is type(model.residual) is nn.Conv2d
    assert strided_pointwise_calls(own(), x.float()) == 4
    assert strided_pointwise_calls(model, x.float()) == 1  # that of the wide layer


def test_replaced_layers_keep_parameters_and_names_and_are_replaced_once() -> None:
    plain = own()
    parameters = dict(plain.named_parameters())
    slices = {part.name: part for part in Network(cured()).layout.slices}
    with pytest.warns(UserWarning, match="subsample first"):
        network = Network(plain)
    assert {part.name: part for part in network.layout.slices} == slices
    assert dict(network.parameters).keys() == parameters.keys()
    assert all(parameters[name] is parameter for name, parameter in network.parameters)
    with no_warnings():
        Network(plain)


def test_replaced_layers_survive_copies_pickles_and_saved_states() -> None:
    model, x = cured(), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    other = own(seed=1)
    other.load_state_dict(model.state_dict())
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), other):
        assert_same_function(model, twin, x)
    with torch.no_grad():
        twin = copy.deepcopy(model)
        twin.short.weight.zero_()
        assert model.short.weight.abs().sum() > 0


def test_replaced_layers_run_stacked() -> None:
    models, x = [cured(0), cured(1)], torch.randn(3, 3, 16, 16)
    state, _ = stack_module_state(models)

    def loss(state: dict[str, Tensor]) -> Tensor:
        return functional_call(models[0], state, (x,)).square().sum()

    together = torch.vmap(torch.func.grad(loss))({name: value.detach() for name, value in state.items()})
    for index, model in enumerate(models):
        for name, gradient in gradients(model, x).items():
            torch.testing.assert_close(together[name][index], gradient, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(NARROW, 8, 1, stride=2),
        nn.Conv2d(4, 8, 1, stride=1),
        nn.Conv2d(4, 8, 3, stride=2),
        nn.Conv2d(4, 8, (1, 3), stride=2),
        nn.Conv2d(4, 8, 1, stride=2, groups=4),
        nn.Conv2d(4, 8, 1, stride=2, padding=1),
        nn.Conv3d(4, 8, 1, stride=2),
        nn.ConvTranspose2d(4, NARROW, 1, stride=2),
        nn.ConvTranspose2d(4, 8, 2, stride=2),
    ],
)
def test_layers_that_are_sound_are_left_alone(layer: nn.Module) -> None:
    kind = type(layer)
    with no_warnings():
        Network(nn.Sequential(layer))
    assert type(layer) is kind


class Standardised(nn.Conv2d):
    """Computes something of its own."""

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, self.weight - self.weight.mean(), self.bias)


@pytest.mark.parametrize(
    "layer", [Standardised(4, 8, 1, stride=2), nn.ConvTranspose2d(32, 4, 1, stride=2, output_padding=1)]
)
def test_layers_that_cannot_be_replaced_are_refused_by_name(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(layer))
    name = type(layer).__name__
    with pytest.raises(ValueError, match=rf"'1\.0' = {name}\(.*fewer than 16 channels.*{name} cannot be replaced"):
        Network(model)
    Network(model, "meta")  # oneDNN computes on the CPU only
