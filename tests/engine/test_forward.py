"""One model at a time and stacked models show an objective the same outputs, and differentiate it alike."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from fedwcm.core.batch import Outputs
from fedwcm.core.types import Vec
from fedwcm.engine.fast.ascent import AscendedModels
from fedwcm.engine.fast.linear_stack import LinearStack
from fedwcm.engine.forward import DenseModels, SequentialForward, VmapForward
from fedwcm.engine.network import Network

from ..factories import CLASSES, FEATURES, IMAGE, conv_batchnorm, headless, linear, mlp, seeded
from .forward_passes import (
    BATCH,
    EXACT,
    Build,
    K,
    Loss,
    Way,
    both,
    first_class,
    gradient,
    models_and_inputs,
    of_features,
    two_convolutions,
)


def unbiased() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES, bias=False)))


def deep() -> nn.Module:
    def build() -> nn.Module:
        below = nn.Sequential(nn.Linear(FEATURES, 6), nn.Sigmoid(), nn.Linear(6, 5))
        return nn.Sequential(below, nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, CLASSES))

    return seeded(build)


def of_the_head_on_other_features(outputs: Outputs, _: Vec) -> Tensor:
    return (outputs.head(outputs.features.detach() * 2.0 + 1.0) ** 2).sum(dim=-1).mean(dim=-1)


def distilled(outputs: Outputs, x: Vec) -> Tensor:
    """Like first_class, plus the distance to what the received model says."""
    received = outputs.at(x)
    assert not received.logits.requires_grad
    distance = ((outputs.logits - received.logits) ** 2).sum(dim=-1).mean(dim=-1)
    return first_class(outputs, x) + distance + 0.0 * received.features.sum(dim=(-1, -2))


@pytest.mark.parametrize("build", [mlp, unbiased, deep])
@pytest.mark.parametrize("loss", [first_class, of_features, of_the_head_on_other_features, distilled])
@pytest.mark.parametrize("way", [VmapForward, LinearStack])
def test_losses_and_gradients_agree_whatever_of_the_view_is_used(build: Build, loss: Loss, way: Way) -> None:
    together, apart = both(build, loss, way=way)
    for mine, theirs in zip(together, apart, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), **EXACT)
    assert len(set(together[0].tolist())) == K
    assert (together[1].norm(dim=-1) > 1e-3).all()


@pytest.mark.parametrize("build", [mlp, unbiased])
@pytest.mark.parametrize("loss", [first_class, of_features, of_the_head_on_other_features])
@pytest.mark.parametrize("way", [SequentialForward, VmapForward, LinearStack])
def test_a_gradient_can_be_had_as_a_vector_or_added_to_the_models(build: Build, loss: Loss, way: Way) -> None:
    network = Network(build())
    w, inputs = models_and_inputs(network)
    k = 1 if way is SequentialForward else K
    forward, w, inputs = way(network), w[:k], inputs[:k]
    rates = torch.tensor([0.3, -2.0, 0.1], dtype=torch.float64)[:k]
    plain = gradient(forward, loss(forward(w, inputs, track=True), w[0]))
    moved = w.clone()
    outputs = forward(moved, inputs, track=True)
    forward.backward((loss(outputs, w[0]), rates)).add_to(moved)
    np.testing.assert_allclose(moved.numpy(), (w + rates[:, None] * plain).numpy(), **EXACT)
    here, afresh = (f(moved, inputs, track=True).logits.detach() for f in (forward, way(Network(build()))))
    assert torch.equal(here, afresh)  # of the models as they are now, not of what they were


@pytest.mark.parametrize("build", [mlp, unbiased, linear, deep])
@pytest.mark.parametrize("loss", [first_class, distilled, of_the_head_on_other_features])
@pytest.mark.parametrize("rho", [0.01, 2.0])
def test_models_moved_uphill_are_the_same_whether_written_out_or_not(build: Build, loss: Loss, rho: float) -> None:
    network = Network(build())
    w, inputs = models_and_inputs(network)
    forward, ends = LinearStack(network), []
    for lazily in (False, True):
        before = loss(forward(w, inputs, track=True), w[0])
        slopes = forward.backward((before, torch.ones_like(before)))
        point = (forward if lazily else DenseModels()).ascend(w, slopes, rho)
        assert isinstance(point, AscendedModels) == (lazily and loss is not of_the_head_on_other_features)
        outputs = point.outputs() if isinstance(point, AscendedModels) else forward(point, inputs, track=False)
        after = loss(outputs, w[0])
        ends.append([outputs.logits.detach(), outputs.head(outputs.features).detach(), after.detach()])
        ends[-1].append(forward.backward((after, torch.ones_like(after))).vector())
    for written, lazy in zip(*ends, strict=True):
        np.testing.assert_allclose(lazy.numpy(), written.numpy(), rtol=1e-9, atol=1e-12)
    assert not torch.allclose(ends[0][-1], slopes.vector(), rtol=1e-3)


def test_a_zero_gradient_leads_nowhere() -> None:
    network = Network(mlp())
    w, inputs = models_and_inputs(network)
    forward = LinearStack(network)
    logits = forward(w, inputs, track=True).logits
    point = forward.ascend(w, forward.backward((logits, torch.zeros_like(logits))), 0.5)
    assert isinstance(point, AscendedModels)
    assert torch.equal(point.outputs().logits, logits)


@pytest.mark.parametrize("way", [SequentialForward, VmapForward, LinearStack])
def test_a_gradient_with_respect_to_the_logits_goes_on_to_the_models(way: Way) -> None:
    network = Network(mlp())
    w, inputs = models_and_inputs(network)
    k = 1 if way is SequentialForward else K
    forward = way(network)
    plain = gradient(forward, first_class(forward(w[:k], inputs[:k], track=True), w[0]))
    outputs = forward(w[:k], inputs[:k], track=True)
    by_logits = outputs.logits.detach().softmax(dim=-1)
    by_logits[..., 0] -= 1.0
    np.testing.assert_allclose(
        forward.backward((outputs.logits, by_logits / BATCH)).vector().numpy(), plain.numpy(), **EXACT
    )


@pytest.mark.parametrize("build", [mlp, unbiased, deep, linear])
@pytest.mark.parametrize("way", [SequentialForward, VmapForward, LinearStack])
def test_gradients_with_respect_to_logits_and_features_go_on_to_the_models(build: Build, way: Way) -> None:
    network = Network(build())
    w, inputs = models_and_inputs(network)
    k = 1 if way is SequentialForward else K
    forward = way(network)
    if build is linear:  # its features are its inputs
        expected = gradient(forward, first_class(forward(w[:k], inputs[:k], track=True), w[0]))
    else:
        outputs = forward(w[:k], inputs[:k], track=True)
        expected = gradient(forward, first_class(outputs, w[0]) + of_features(outputs, w[0]))
    outputs = forward(w[:k], inputs[:k], track=True)
    by_logits = outputs.logits.detach().softmax(dim=-1)
    by_logits[..., 0] -= 1.0
    by_features = 2.0 * outputs.features.detach() / BATCH
    found = forward.backward((outputs.logits, by_logits / BATCH), (outputs.features, by_features))
    np.testing.assert_allclose(found.vector().numpy(), expected.numpy(), **EXACT)


def test_the_features_of_softmax_regression_are_its_inputs() -> None:
    network = Network(linear())
    w, inputs = models_and_inputs(network)
    assert torch.equal(VmapForward(network)(w, inputs, track=True).features, inputs)
    assert torch.equal(LinearStack(network)(w, inputs, track=True).features, inputs)
    assert torch.equal(SequentialForward(network)(w[:1], inputs[:1], track=True).features, inputs[:1])


@pytest.mark.parametrize("build", [linear, mlp, unbiased])
@pytest.mark.parametrize("way", [SequentialForward, VmapForward, LinearStack])
def test_the_head_on_the_features_gives_the_logits(build: Build, way: Way) -> None:
    network = Network(build())
    w, inputs = models_and_inputs(network)
    k = 1 if way is SequentialForward else K
    outputs = way(network)(w[:k], inputs[:k], track=True)
    np.testing.assert_allclose(
        outputs.head(outputs.features).detach().numpy(), outputs.logits.detach().numpy(), **EXACT
    )


@pytest.mark.parametrize(
    ("way", "build", "shape"),
    [
        *((way, mlp, (FEATURES,)) for way in (SequentialForward, VmapForward, LinearStack)),
        *((way, two_convolutions, IMAGE) for way in (SequentialForward, VmapForward)),
    ],
)
def test_looking_at_another_model_changes_neither_the_view_nor_its_gradient(
    way: Way, build: Build, shape: tuple[int, ...]
) -> None:
    network = Network(build())
    w, inputs = models_and_inputs(network, shape)
    x = network.initial()[0] * 2
    k = 1 if way is SequentialForward else K
    forward = way(network)
    plain = gradient(forward, first_class(forward(w[:k], inputs[:k], track=True), x))
    outputs = forward(w[:k], inputs[:k], track=True)
    other = outputs.at(x)
    assert torch.equal(gradient(forward, first_class(outputs, x)), plain)
    mine = Network(build())
    mine.point_parameters(x)
    np.testing.assert_allclose(other.logits[0].numpy(), mine(inputs[0])[0].detach().numpy(), **EXACT)


def test_gradients_are_those_of_autograd_on_a_plain_module() -> None:
    module = mlp()
    network = Network(mlp())
    w, inputs = models_and_inputs(network)
    forward = VmapForward(network)
    gradients = gradient(forward, first_class(forward(w, inputs, track=True), w[0]))
    for k in range(K):
        nn.utils.vector_to_parameters(w[k], module.parameters())
        loss = -log_softmax(module(inputs[k]), dim=-1)[:, 0].mean()
        expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])
        np.testing.assert_allclose(gradients[k].numpy(), expected.numpy(), **EXACT)


def test_a_model_without_a_linear_layer_has_no_features_in_either_way() -> None:
    together, apart = both(headless, first_class, IMAGE)
    for mine, theirs in zip(together, apart, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), **EXACT)
    network = Network(headless())
    w, inputs = models_and_inputs(network, IMAGE)
    assert network.head is None
    assert not network.layout.head_slices
    assert VmapForward(network)(w, inputs, track=True).features.numel() == 0
    assert SequentialForward(network)(w[:1], inputs[:1], track=True).features.numel() == 0


def test_a_model_without_a_linear_layer_has_no_head() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(CLASSES))

        def forward(self, inputs: Tensor) -> Tensor:
            return inputs * self.scale

    assert not Network(Scaled()).layout.head_slices


def test_frozen_parameters_stay_out_of_the_vector() -> None:
    module = mlp()
    next(module.parameters()).requires_grad_(False)
    network = Network(module)
    assert network.size == sum(p.numel() for p in module.parameters()) - 6 * FEATURES


def test_integer_buffers_stay_out_and_statistics_are_in() -> None:
    network = Network(conv_batchnorm())
    assert [name for name, _ in network.buffers] == ["1.running_mean", "1.running_var"]
    assert network.initial()[1].tolist() == [0.0] * 3 + [1.0] * 3


def test_a_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="Flatten has no trainable parameters"):
        Network(nn.Flatten())


def test_the_state_dict_holds_the_given_vector_and_buffers() -> None:
    network = Network(conv_batchnorm())
    x, buffers = (torch.arange(float(len(v)), dtype=torch.float64) for v in network.initial())
    state = network.state_dict(x, buffers)
    assert torch.equal(torch.cat([state[slot.name].reshape(-1) for slot in network.layout.slices]), x)
    assert torch.equal(torch.cat([state["1.running_mean"], state["1.running_var"]]), buffers)
    assert state["1.num_batches_tracked"] == 0


def test_tensors_of_several_types_are_refused_by_name() -> None:
    mixed = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2).double())
    with pytest.raises(ValueError, match=r"parameters have several types .*'1.weight' is torch.float64"):
        Network(mixed)
    mixed = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))
    mixed.register_buffer("shift", torch.zeros(4, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"buffers have several types .*'shift' is torch.float64"):
        Network(mixed)
