"""Models of the user's own with unusual parts: a classifier registered first, an unused layer, tied weights."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fedwcm
from fedwcm.engine.network import Network

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(120, 5)).astype(np.float32), np.arange(120) % 3
SMALL: dict[str, Any] = {"dataset": (X, Y), "rounds": 1, "epochs": 1, "clients": 2, "report": False}


class ClassifierFirst(nn.Module):
    """Its last registered linear layer is not the last one that is computed, and another one is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(8, 3)
        self.hidden = nn.Linear(5, 8)
        self.unused = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.hidden(x).relu())
        return scores


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.second.weight = self.first.weight
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.second(self.first(x).relu()).relu())
        return scores


def test_the_head_is_the_layer_that_makes_the_class_scores(tmp_path: Path) -> None:
    module = ClassifierFirst()
    assert Network(module, classes=3).head is module.classifier
    fedwcm.run("creff", model=ClassifierFirst, out=tmp_path / "run", **SMALL)
    network = Network(module)  # as on Flower, where the number of classes is found out later
    network.choose_head(3)
    assert network.head is module.classifier
    assert network.layout.head_slices == Network(module, classes=3).layout.head_slices
    assert network(torch.zeros(2, 5))[1].shape == (2, 8)


def test_parameters_without_a_gradient_count_as_zeros_in_the_diagnostic() -> None:
    result = fedwcm.run("fedavg", model=ClassifierFirst, diagnostics=["train_set"], **SMALL)
    assert (result.history[-1].number("gradient_norm_squared") or 0) > 0


def test_tied_weights_are_exported(tmp_path: Path) -> None:
    fedwcm.run("fedavg", model=Tied, out=tmp_path / "run", **SMALL)
    fedwcm.export(tmp_path / "run", "state-dict", tmp_path / "weights.safetensors", model=Tied())
    weights = load_file(tmp_path / "weights.safetensors")
    assert torch.equal(weights["first.weight"], weights["second.weight"])
