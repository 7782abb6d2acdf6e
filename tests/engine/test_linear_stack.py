"""Stacks of linear layers: the hand-written pass is autograd's, and is taken for nothing else."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedwcm.core.batch import Outputs
from fedwcm.core.loss import LogitScale
from fedwcm.core.types import Vec
from fedwcm.engine import evaluate
from fedwcm.engine.backends.plan import stacked_forward
from fedwcm.engine.fast import products
from fedwcm.engine.fast.linear_stack import LinearStack, linear_layers
from fedwcm.engine.fast.products import _is_batched
from fedwcm.engine.forward import SequentialForward, VmapForward
from fedwcm.engine.network import Network

from ..factories import CLASSES, FEATURES, IMAGE, conv_batchnorm, headless, linear, mlp, seeded
from .forward_passes import EXACT, Build, both, first_class, models_and_inputs, of_features, two_convolutions


def deep(activation: type[nn.Module], bias: bool) -> nn.Module:
    """Three hidden layers on images, one of them without an activation, one activation used twice."""
    same = activation()
    return seeded(
        lambda: nn.Sequential(
            nn.Flatten(),
            nn.Sequential(nn.Linear(16, 7, bias=bias), same, nn.Linear(7, 6)),
            nn.Linear(6, 5, bias=bias),
            same,
            nn.Linear(5, CLASSES),
        )
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.Sigmoid])
def test_the_hand_written_backward_pass_is_autograds(activation: type[nn.Module], bias: bool) -> None:
    together, apart = both(lambda: deep(activation, bias), first_class, IMAGE, LinearStack)
    for mine, theirs in zip(together, apart, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), **EXACT)
    assert (together[1] != 0).any(dim=0).float().mean() > 0.5


def test_softmax_regression_may_use_its_inputs_as_features() -> None:
    def weighed(outputs: Outputs, x: Vec) -> Tensor:
        return first_class(outputs, x) * (1.0 + of_features(outputs, x))

    together, apart = both(linear, weighed, way=LinearStack)
    for mine, theirs in zip(together, apart, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), **EXACT)


@pytest.mark.parametrize("shared", [True, False])
def test_held_models_take_the_steps_that_dense_ones_take(shared: bool) -> None:
    stack = LinearStack(Network(deep(nn.ReLU, True)))
    x, _ = stack.network.initial()
    random = torch.Generator().manual_seed(1)
    held = torch.stack([x, 0.9 * x, 1.1 * x])
    dense, keep = held.clone(), torch.tensor([[0.9], [0.8], [0.7]], dtype=x.dtype)
    offset = 0.1 * torch.randn(() if shared else (3,), generator=random, dtype=x.dtype)[..., None] * x
    inputs = torch.randn(3, 5, *IMAGE, generator=random, dtype=x.dtype)
    with stack.hold(held):
        for active in (3, 2):
            logits = stack(held[:active], inputs[:active], track=True).logits
            offsets = offset if shared else offset[:active]
            stack.backward((logits, logits.detach())).add_to(held[:active], keep[:active], offsets)
    for active in (3, 2):
        w = dense[:active]
        logits = stack(w, inputs[:active], track=True).logits
        gradient = stack.backward((logits, logits.detach())).vector()
        w.copy_(keep[:active] * w + (offset if shared else offset[:active]) + gradient)
    np.testing.assert_allclose(held.numpy(), dense.numpy(), **EXACT)


def test_every_parameter_is_written_even_if_the_loss_does_not_depend_on_it() -> None:
    together, apart = both(mlp, of_features, way=LinearStack)
    head = 6 * CLASSES + CLASSES
    assert (together[1][:, -head:] == 0).all()
    np.testing.assert_allclose(together[1].numpy(), apart[1].numpy(), **EXACT)


def frozen() -> nn.Module:
    module = mlp()
    next(module.parameters()).requires_grad_(False)
    return module


class Doubling(nn.Sequential):
    """Not a plain sequence, though it is made as one."""

    def forward(self, x: Tensor) -> Tensor:
        doubled: Tensor = 2.0 * super().forward(x)
        return doubled


def shared() -> nn.Module:
    layer = nn.Linear(FEATURES, FEATURES)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(FEATURES, CLASSES))


OTHERS: list[Build] = [
    conv_batchnorm,
    headless,
    lambda: mlp(0.1),
    frozen,
    shared,
    lambda: Doubling(nn.Linear(FEATURES, 5), nn.ReLU(), nn.Linear(5, CLASSES)),
    lambda: nn.Sequential(nn.Linear(FEATURES, 5), nn.ReLU(), nn.Tanh(), nn.Linear(5, CLASSES)),
    lambda: nn.Sequential(nn.Linear(FEATURES, 5), nn.LayerNorm(5), nn.Linear(5, CLASSES)),
    lambda: nn.Sequential(nn.ReLU(), nn.Linear(FEATURES, CLASSES)),
    lambda: nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Sigmoid()),
    lambda: nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Flatten()),
]


@pytest.mark.parametrize("build", OTHERS)
def test_a_model_that_is_anything_else_is_left_to_autograd(build: Build) -> None:
    network = Network(build())
    assert linear_layers(network) is None
    with pytest.raises(ValueError, match="not a plain stack"):
        LinearStack(network)


def test_stacking_takes_the_kernel_where_there_is_one() -> None:
    assert isinstance(stacked_forward(Network(mlp())), LinearStack)
    assert isinstance(stacked_forward(Network(two_convolutions())), VmapForward)


def test_a_new_block_lets_go_of_the_models_before() -> None:
    network = Network(mlp())
    x = network.initial()[0]
    w, inputs = models_and_inputs(network)
    single, together = SequentialForward(network), LinearStack(network)
    single(w[:1], inputs[:1], track=True)
    together(w, inputs, track=True)
    assert network.parameters[0][1].data_ptr() == w.data_ptr()
    for forward in (single, together):
        forward.start(x, torch.zeros(0))
    assert network.parameters[0][1].data_ptr() == x.data_ptr()
    assert together._seen is None
    assert together._tape is None


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let oneDNN form all products of float32, however small, whatever the processor."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("torch was built without oneDNN")
    for module in (products, evaluate):
        monkeypatch.setattr(module, "LARGE", 0)
        monkeypatch.setattr(module, "prefers_onednn", lambda: True)


@pytest.mark.parametrize("bias", [True, False])
def test_training_and_evaluation_are_the_same_by_onednn(onednn: None, bias: bool) -> None:
    network = Network(deep(nn.ReLU, bias).float(), logit_scale=LogitScale(2.0, normalize=True))
    x, buffers = network.initial()
    w = torch.stack([x, x + 0.1, x - 0.1])
    stack, inputs = LinearStack(network), torch.randn(3, 5, *IMAGE, generator=torch.Generator().manual_seed(1))

    def gradient(w: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        outputs = stack(w.to(value.dtype), inputs.to(value.dtype), track=True)
        again = outputs.head(outputs.features).square().sum(dim=(1, 2))
        factors = stack.backward((outputs.logits.sum(dim=(1, 2)) + again, torch.ones(3, dtype=value.dtype)))
        moved = w.to(value.dtype, copy=True)
        factors.add_to(moved)
        return factors.vector(), moved

    by_mkl = gradient(w, torch.zeros(0, dtype=torch.float64))  # doubles are always MKL's
    for mine, expected in zip(gradient(w, torch.zeros(0)), by_mkl, strict=True):
        np.testing.assert_allclose(mine.numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)

    samples, labels = torch.randn(evaluate.CHUNK + 3, *IMAGE), torch.arange(evaluate.CHUNK + 3) % CLASSES
    tested = evaluate.evaluate(network, x, buffers, samples, labels, CLASSES)
    with torch.no_grad():
        logits = network.predict(samples)
    np.testing.assert_allclose(tested.loss, float(cross_entropy(logits, labels)), rtol=1e-5)
    np.testing.assert_allclose(tested.confidence, logits.softmax(dim=-1).amax(dim=-1).numpy(), rtol=1e-4)


def test_products_are_batched_for_several_models_of_some_size_that_lie_together() -> None:
    models = torch.zeros(3, 40, 40)
    assert _is_batched(models, 5)
    assert not _is_batched(models[:1], 5)
    assert not _is_batched(models.mT, 5)
    assert not _is_batched(torch.zeros(3, 4, 4), 5)
    assert _is_batched(models[:2], 5)
