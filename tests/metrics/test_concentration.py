"""Neuron concentration: its laws, and what it hears of networks of every build."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedwcm
from fedwcm.core.types import Floats
from fedwcm.engine import evaluate as evaluation
from fedwcm.engine.network import Network
from fedwcm.metrics.diagnostics import (
    PER_CLASS,
    ActivationRecorder,
    diagnosing,
    layer_concentration,
    mean_concentration,
)
from fedwcm.models import build_model
from tests.records import timeless

SMALL: Any = {"dataset": "digits", "clients": 10, "participation": 0.5, "epochs": 1, "batch_size": 10, "rounds": 6}
ADDED = {"concentration", "concentration_layers", "classifier_angle", "minority_angle"}


def samples(shape: tuple[int, ...], classes: int, count: int) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(0)
    labels = rng.integers(classes, size=count)
    inputs = rng.normal(size=(count, *shape)) + labels.reshape(-1, *[1] * len(shape)) / 3
    return torch.from_numpy(inputs.astype(np.float32)), torch.from_numpy(labels)


def heard(module: nn.Module, inputs: Tensor, labels: Tensor, classes: int) -> dict[str, Floats]:
    network = Network(module)
    with ActivationRecorder(network, labels, classes) as listening:
        evaluation.evaluate(network, *network.initial(), inputs, labels, classes)
    return listening.means()


def class_means(activations: Floats, labels: Tensor, classes: int) -> Floats:
    """Mean of the positive part over the first samples of each class, written down plainly."""
    rows = []
    for c in range(classes):
        mine = np.flatnonzero(labels.numpy() == c)[:PER_CLASS]
        rows.append(np.maximum(activations[mine].astype(np.float64), 0).mean(axis=0))
    return np.array(rows)


# --- the measure -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("means", "concentration"),
    [
        (np.eye(5) * [1, 2, 3, 4, 1e-9], 1.0),
        (np.ones((7, 3)) * [0.1, 1, 1000], 0.0),
        (np.array([[1.0], [1.0], [0.0], [0.0]]), 1 - np.log(2) / np.log(4)),
    ],
    ids=["one class", "all alike", "half"],
)
def test_concentration_is_one_minus_the_entropy_of_the_classes(means: Floats, concentration: float) -> None:
    assert layer_concentration(means) == pytest.approx(concentration, abs=1e-12)


def test_scale_and_order_of_neurons_and_classes_do_not_matter() -> None:
    rng = np.random.default_rng(0)
    means = rng.exponential(size=(6, 9))
    moved = (means * rng.uniform(0.1, 10, size=9))[rng.permutation(6)][:, rng.permutation(9)]
    assert layer_concentration(moved) == pytest.approx(layer_concentration(means), abs=1e-12)


def test_neurons_that_never_fire_or_overflow_are_left_out() -> None:
    dead, overflowing = np.zeros((3, 1)), np.full((3, 1), np.inf)
    assert layer_concentration(np.hstack([np.eye(3), dead, overflowing])) == pytest.approx(1)
    assert layer_concentration(dead) is None
    assert layer_concentration(np.ones((1, 4))) is None
    assert mean_concentration({"a": 0.5, "b": None, "c": 1.0}) == 0.75
    assert mean_concentration({"b": None}) is None


# --- what is heard -----------------------------------------------------------------------------------


def test_a_perceptron_agrees_with_a_plain_computation() -> None:
    inputs, labels = samples((6,), 3, 700)
    module = build_model("mlp", (6,), 3, 0, hidden=[12, 8])
    state = {name: value.double().numpy() for name, value in module.state_dict().items()}
    first = np.maximum(inputs.double().numpy() @ state["body.1.weight"].T + state["body.1.bias"], 0)
    second = np.maximum(first @ state["body.3.weight"].T + state["body.3.bias"], 0)
    expected = {"body.1": class_means(first, labels, 3), "body.3": class_means(second, labels, 3)}
    found = heard(module, inputs, labels, 3)
    assert list(found) == list(expected)
    for name, means in expected.items():
        np.testing.assert_allclose(found[name], means, rtol=1e-4, atol=1e-6)


def test_maps_of_a_convolution_count_with_their_mean_over_positions() -> None:
    inputs, labels = samples((1, 8, 8), 3, 60)
    module = build_model("cnn", (1, 8, 8), 3, 0)
    found = heard(module, inputs, labels, 3)
    with torch.no_grad():
        maps = F.relu(F.max_pool2d(module.body[0](inputs), 2)).mean(dim=(2, 3)).numpy()
    assert list(found) == ["body.0", "body.3", "body.6", "body.10"]
    np.testing.assert_allclose(found["body.0"], class_means(maps, labels, 3), rtol=1e-4)


def test_the_size_of_a_pass_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, labels = samples((1, 8, 8), 3, 400)
    module = build_model("resnet8", (1, 8, 8), 3, 0, width=4)
    found = []
    for chunk in (7, 64, 10_000):
        monkeypatch.setattr(evaluation, "CHUNK", chunk)
        found.append(heard(module, inputs, labels, 3))
    for name in found[0]:
        np.testing.assert_allclose(found[0][name], found[1][name], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(found[0][name], found[2][name], rtol=1e-5, atol=1e-7)


def test_only_the_first_samples_of_each_class_are_heard() -> None:
    inputs, labels = samples((6,), 2, 3 * PER_CLASS)
    module = build_model("mlp", (6,), 2, 0, hidden=[5])
    before = heard(module, inputs, labels, 2)
    seen: Counter[int] = Counter()
    for row, label in enumerate(labels.tolist()):
        seen[label] += 1
        if seen[label] > PER_CLASS:
            inputs[row] = 100.0
    after = heard(module, inputs, labels, 2)
    np.testing.assert_allclose(before["body.1"], after["body.1"], rtol=1e-5)
    inputs[0] = 100.0
    assert not np.allclose(before["body.1"], heard(module, inputs, labels, 2)["body.1"], rtol=1e-3)


def test_a_class_without_test_samples_is_no_class() -> None:
    inputs, labels = samples((6,), 2, 50)
    module = build_model("mlp", (6,), 4, 0, hidden=[5])
    assert heard(module, inputs, labels, 4)["body.1"].shape == (2, 5)


class Functional(nn.Module):
    """Activations as functions and methods, as in many a model of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.third(self.second(F.relu(self.first(x))).relu_()))
        return logits


def test_activations_are_heard_however_a_model_calls_them() -> None:
    inputs, labels = samples((6,), 3, 60)
    module = Functional()
    found = heard(module, inputs, labels, 3)
    assert list(found) == ["first", "second", "features"]
    with torch.no_grad():
        first = module.first(inputs)
        features = module.third(F.relu(module.second(F.relu(first))))
    np.testing.assert_allclose(found["first"], class_means(first.numpy(), labels, 3), rtol=1e-4)
    np.testing.assert_allclose(found["features"], class_means(features.numpy(), labels, 3), rtol=1e-4)


class Shared(nn.Module):
    """One activation used twice after one layer, and a sequence of positions with the neurons last."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.act, self.norm, self.head = nn.Linear(2, 5), nn.GELU(), nn.LayerNorm(5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        positions = self.act(self.norm(self.act(self.embed(x.reshape(len(x), 3, 2)))))
        logits: Tensor = self.head(positions.mean(dim=1))
        return logits


def test_an_activation_used_twice_counts_twice_by_number() -> None:
    inputs, labels = samples((6,), 3, 60)
    module = Shared()
    found = heard(module, inputs, labels, 3)
    assert list(found) == ["embed", "embed#2", "features"]  # the mean of GELUs is not that of their positive part
    with torch.no_grad():
        first = F.relu(F.gelu(module.embed(inputs.reshape(-1, 3, 2)))).mean(dim=1)
    np.testing.assert_allclose(found["embed"], class_means(first.numpy(), labels, 3), rtol=1e-4)


def test_without_activations_features_are_heard_and_without_a_head_nothing() -> None:
    inputs, labels = samples((6,), 3, 30)
    assert list(heard(build_model("mlp", (6,), 3, 0, hidden=[]), inputs, labels, 3)) == ["features"]
    bare = nn.Sequential(nn.Unflatten(1, (6, 1)), nn.Conv1d(6, 3, 1), nn.Flatten())
    network = Network(bare)
    with diagnosing(["concentration"], network, labels, np.array([9, 9, 1])) as record:
        evaluation.evaluate(network, *network.initial(), inputs, labels, 3)
    assert record == {
        "concentration": None,
        "concentration_layers": {},
        "classifier_angle": None,
        "minority_angle": None,
    }


# --- in a run ----------------------------------------------------------------------------------------


def test_a_run_records_it_when_asked_and_nothing_else_changes() -> None:
    plain = fedwcm.run("fedwcm", **SMALL)
    asked = fedwcm.run("fedwcm", diagnostics="concentration", **SMALL)  # type: ignore[arg-type]
    for before, after in zip(timeless(plain.history), timeless(asked.history), strict=True):
        assert ADDED.isdisjoint(before)
        assert set(after) - set(before) == ADDED
        assert before == {k: v for k, v in after.items() if k not in ADDED}
    last = asked.history[-1].extra
    layers = last["concentration_layers"]
    assert isinstance(layers, dict)
    assert last["concentration"] == pytest.approx(np.mean(list(layers.values())))
    assert 0 < last["concentration"] < 1
    assert 0 < last["minority_angle"] < 180


def test_without_being_asked_nothing_is_hooked() -> None:
    network = Network(build_model("mlp", (6,), 2, 0))

    def hooks() -> int:
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in network.module.modules())

    before, labels, counts = hooks(), torch.tensor([0, 1]), np.array([1, 1])
    with diagnosing([], network, labels, counts):
        assert hooks() == before
    with diagnosing(["concentration"], network, labels, counts):
        assert hooks() > before
    assert hooks() == before


def test_an_unknown_diagnostic_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match="Did you mean 'concentration'"):
        fedwcm.run("fedavg", diagnostics="concentrations", **SMALL)  # type: ignore[arg-type]


class Tokens(nn.Module):
    """Activations of an embedding, or of a recurrent layer behind it: (samples, steps, neurons)."""

    def __init__(self, recurrent: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 8)
        self.recurrent = nn.GRU(8, 8, batch_first=True) if recurrent else None
        self.head = nn.Linear(8, 3)

    def activations(self, tokens: Tensor) -> Tensor:
        embedded = self.embedding(tokens)
        return torch.relu(embedded if self.recurrent is None else self.recurrent(embedded)[0])

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.activations(tokens).mean(1))
        return logits


def test_an_activation_before_all_layers_is_that_of_the_inputs() -> None:
    inputs, labels = torch.linspace(-2, 3, 60 * 4).reshape(60, 4), torch.arange(60) % 3
    module = nn.Sequential(nn.Sequential(nn.ReLU()), nn.Linear(4, 3))
    expected = class_means(inputs.relu().numpy(), labels, 3)
    np.testing.assert_allclose(heard(module, inputs, labels, 3)["input"], expected, rtol=1e-5)
    images = inputs.reshape(60, 2, 1, 2)
    module = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(4, 3))
    expected = class_means(images.relu().mean(dim=(2, 3)).numpy(), labels, 3)  # a neuron for each channel
    np.testing.assert_allclose(heard(module, images, labels, 3)["input"], expected, rtol=1e-5)


@pytest.mark.parametrize("recurrent", [False, True])
def test_behind_an_embedding_and_a_recurrent_layer_neurons_are_on_the_last_axis(recurrent: bool) -> None:
    torch.manual_seed(0)
    tokens, labels = torch.randint(12, (60, 5)), torch.randint(3, (60,))
    module = Tokens(recurrent)
    with torch.no_grad():
        expected = class_means(module.activations(tokens).mean(1).numpy(), labels, 3)
    ((name, means),) = heard(module, tokens, labels, 3).items()
    assert name == ("recurrent" if recurrent else "embedding")
    np.testing.assert_allclose(means, expected, rtol=1e-5)
