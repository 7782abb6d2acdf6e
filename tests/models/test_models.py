"""Laws of the models: shapes, parameter counts, the head/features contract, seeds and clear errors."""

from math import prod, sqrt

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from fedwcm.models import MODELS, build_model, default_model
from fedwcm.models.resnet import BasicBlock

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 64, 64)]
CIFAR = (3, 32, 32)
# Narrow networks keep the tests fast; the wide ones are counted once, below.
OPTIONS = {"resnet8": {"width": 8}, "resnet18": {"width": 8}, "resnet34": {"width": 4}}


def small(name: str, input_shape: tuple[int, ...] = CIFAR, classes: int = 5, seed: int = 0) -> nn.Module:
    return build_model(name, input_shape, classes, seed, **OPTIONS.get(name, {}))


def batch(input_shape: tuple[int, ...], size: int = 3) -> Tensor:
    return torch.randn(size, *input_shape, generator=torch.Generator().manual_seed(7))


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def equal_weights(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


# Shapes and contract


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("input_shape", SHAPES)
def test_forward_is_the_head_on_the_features_of_each_sample(name: str, input_shape: tuple[int, ...]) -> None:
    model, x = small(name, input_shape), batch(input_shape)
    scores, features = model(x), model.body(x)
    assert torch.equal(x, batch(input_shape)), "the input is not changed"
    assert isinstance(model.head, nn.Linear)
    assert features.shape == (3, model.head.in_features)
    assert scores.shape == (3, 5)
    assert torch.equal(scores, model.head(features))
    torch.testing.assert_close(scores[:1], model(x[:1]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("input_shape", [(1, 1, 1), (2, 1, 9), (3, 7, 5)])
def test_any_image_from_one_pixel_up_is_accepted(name: str, input_shape: tuple[int, ...]) -> None:
    assert small(name, input_shape)(batch(input_shape)).shape == (3, 5)


def test_mlp_takes_tables_and_with_no_hidden_layer_is_linear() -> None:
    model = build_model("mlp", (6,), 4, 0, hidden=[])
    x = batch((6,))
    assert torch.equal(model.body(x), x)
    assert parameters(model) == 6 * 4 + 4


# Parameter counts: those of the ResNets are the published ones, with a ten-class head


@pytest.mark.parametrize(
    ("name", "input_shape", "options", "count"),
    [
        ("mlp", (1, 28, 28), {}, 199_210),
        ("cnn", CIFAR, {}, 122_570),
        ("cnn", (1, 28, 28), {}, 121_994),
        ("resnet8", CIFAR, {}, 1_227_594),
        ("resnet18", CIFAR, {}, 11_181_642),
        ("resnet18", CIFAR, {"norm": "batch"}, 11_181_642),
        ("resnet18", CIFAR, {"stem": "cifar"}, 11_173_962),
        ("resnet34", CIFAR, {}, 21_289_802),
    ],
)
def test_parameter_count(name: str, input_shape: tuple[int, ...], options: dict[str, object], count: int) -> None:
    assert parameters(build_model(name, input_shape, 10, 0, **options)) == count


def test_imagenet_stem_shrinks_the_sides_by_four_and_cifar_stem_keeps_them() -> None:
    for stem, side in (("imagenet", 8), ("cifar", 32)):
        model = build_model("resnet8", CIFAR, 10, 0, width=4, stem=stem)
        assert model.body[0](batch(CIFAR)).shape == (3, 4, side, side)


def test_each_stage_halves_the_sides_and_doubles_the_channels() -> None:
    model = build_model("resnet18", CIFAR, 10, 0, width=4, stem="cifar")
    x, shapes = batch(CIFAR), []
    for layer in model.body:
        x = layer(x)
        if isinstance(layer, BasicBlock):
            shapes.append(tuple(x.shape[1:]))
    stages = [(4, 32, 32), (8, 16, 16), (16, 8, 8), (32, 4, 4)]
    assert shapes == [shape for shape in stages for _ in range(2)]


def test_cnn_with_relu_after_the_pool_is_the_cnn_with_relu_before_it() -> None:
    model = build_model("cnn", CIFAR, 10, 0, width=4)
    layers = list(model.body)  # type: ignore[arg-type]
    for at in range(0, 9, 3):
        layers[at + 1], layers[at + 2] = layers[at + 2], layers[at + 1]
    x = batch(CIFAR)
    textbook = model.head(nn.Sequential(*layers)(x))
    assert [type(layer) for layer in layers[:3]] == [nn.Conv2d, nn.ReLU, nn.MaxPool2d]
    assert torch.equal(model(x), textbook)
    parameters = list(model.parameters())
    gradients, expected = (torch.autograd.grad(y.exp().sum(), parameters) for y in (model(x), textbook))
    for gradient, other in zip(gradients, expected, strict=True):
        assert torch.equal(gradient, other)


# Norms and initial weights


@pytest.mark.parametrize(("norm", "kind"), [("group", nn.GroupNorm), ("batch", nn.BatchNorm2d)])
def test_norm_option_selects_every_norm_layer_and_starts_it_as_identity(norm: str, kind: type[nn.Module]) -> None:
    model = build_model("resnet18", CIFAR, 10, 0, width=8, norm=norm, groups=4)
    norms = [module for module in model.modules() if isinstance(module, (nn.GroupNorm, nn.BatchNorm2d))]
    assert len(norms) == 1 + 2 * 8 + 3
    for module in norms:
        assert isinstance(module, kind)
        assert getattr(module, "num_groups", 4) == 4
        assert torch.equal(module.weight, torch.ones_like(module.weight))
        assert torch.equal(module.bias, torch.zeros_like(module.bias))


def test_convolutions_of_a_resnet_start_with_the_variance_of_he_et_al() -> None:
    model = build_model("resnet8", CIFAR, 10, 0)
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert all(convolution.bias is None for convolution in convolutions)
    for convolution in convolutions:
        weight = convolution.weight
        expected = sqrt(2 / (convolution.out_channels * prod(convolution.kernel_size)))
        # The relative error of a standard deviation over n draws is about 1 / sqrt(2 n).
        assert weight.std().item() == pytest.approx(expected, rel=5 / sqrt(2 * weight.numel()))


@pytest.mark.parametrize("name", MODELS)
def test_weights_depend_on_the_seed_only(name: str) -> None:
    torch.manual_seed(1)
    first = small(name, seed=3)
    torch.manual_seed(2)
    assert equal_weights(first, small(name, seed=3))
    assert not equal_weights(first, small(name, seed=4))


@pytest.mark.parametrize("name", MODELS)
def test_global_random_state_is_left_as_it_was_also_after_an_error(name: str) -> None:
    before = torch.get_rng_state()
    small(name)
    with pytest.raises(ValueError):
        build_model(name, CIFAR, 10, 0, head="round")
    assert torch.equal(torch.get_rng_state(), before)


def test_build_leaves_batch_norm_statistics_and_training_mode_untouched() -> None:
    model = build_model("resnet8", CIFAR, 10, 0, width=4, norm="batch")
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for module in norms:
        assert module.num_batches_tracked == 0
        assert torch.equal(module.running_mean, torch.zeros_like(module.running_mean))  # type: ignore[arg-type]
        assert torch.equal(module.running_var, torch.ones_like(module.running_var))  # type: ignore[arg-type]
    assert norms
    assert all(module.training for module in model.modules())


# Gradients and function transforms


@pytest.mark.parametrize("name", MODELS)
def test_gradient_reaches_every_parameter(name: str) -> None:
    model = small(name)
    nn.functional.cross_entropy(model(batch(CIFAR, 8)), torch.arange(8) % 5).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.abs().sum() > 0, key


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet8"])
def test_vmap_of_the_gradient_equals_backward_one_by_one(name: str) -> None:
    models = [small(name, (3, 8, 8), seed=seed) for seed in (0, 1)]
    state, _ = stack_module_state(models)
    state = {key: value.detach() for key, value in state.items()}
    x, y = batch((3, 8, 8)), torch.tensor([0, 3, 4])

    def loss(state: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(functional_call(models[0], state, (x,)), y)

    together = torch.vmap(torch.func.grad(loss))(state)
    for index, model in enumerate(models):
        nn.functional.cross_entropy(model(x), y).backward()
        for key, parameter in model.named_parameters():
            torch.testing.assert_close(together[key][index], parameter.grad, rtol=1e-3, atol=1e-5)


# The default model


@pytest.mark.parametrize(
    ("input_shape", "name"), [((12,), "mlp"), ((1, 28, 28), "mlp"), ((1, 28, 29), "cnn"), ((3, 8, 8), "cnn")]
)
def test_default_model_is_mlp_for_tables_and_small_grey_images_else_cnn(
    input_shape: tuple[int, ...], name: str
) -> None:
    assert default_model(input_shape) == name
    assert build_model(name, input_shape, 3, 0)(batch(input_shape)).shape == (3, 3)


# Errors


@pytest.mark.parametrize("name", ["cnn", "resnet8", "resnet18", "resnet34"])
def test_table_with_a_convolutional_model_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"input_shape = \(20,\).*takes images.*'mlp'"):
        build_model(name, (20,), 2, 0)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet81", {}, r"model 'resnet81'\. Did you mean 'resnet8'.*cnn, mlp.*resnet18"),
        ("zzzzz", {}, r"model 'zzzzz'.*cnn, mlp, package\.module:factory"),
        ("resnet8", {"widht": 4}, r"model 'resnet8': 'widht'\. Did you mean 'width'.*groups, head, norm, stem"),
        ("cnn", {"hidden": [3]}, r"model 'cnn': 'hidden'.*Known: head, width$"),
        ("mlp", {"hidden": [3, 0]}, r"hidden = \[3, 0\], width = 0"),
        ("mlp", {"hidden": 200}, r"hidden = 200.*list"),
        ("mlp", {"head": "round"}, r"head 'round'.*cosine, linear"),
        ("resnet8", {"norm": "groups"}, r"norm 'groups'\. Did you mean 'group'.*batch, group"),
        ("resnet8", {"stem": "cifar10"}, r"stem 'cifar10'\. Did you mean 'cifar'"),
        ("resnet8", {"groups": 3}, r"groups = 3.*width = 64"),
        ("resnet8", {"groups": 0}, r"groups = 0"),
        ("resnet8", {"width": "64"}, r"width = '64'"),
    ],
)
def test_wrong_name_or_option_is_named_with_what_is_allowed(
    name: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(name, CIFAR, 10, 0, **options)


def test_wrong_input_shape_or_classes_is_refused() -> None:
    with pytest.raises(ValueError, match="classes = 0"):
        build_model("mlp", (4,), 0, 0)
    for input_shape in ((), (0,), (3, -1, 8)):
        with pytest.raises(ValueError, match="input_shape"):
            build_model("mlp", input_shape, 2, 0)
        with pytest.raises(ValueError, match="input_shape"):
            default_model(input_shape)
