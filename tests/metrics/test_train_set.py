"""The global model on all training samples, against a plain computation over the whole data at once."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fedwcm
from fedwcm.core.batch import InMemoryFederation
from fedwcm.engine.network import Network
from fedwcm.metrics.diagnostics import train_set_metrics


def test_it_is_the_loss_accuracy_and_gradient_of_all_samples_together() -> None:
    torch.manual_seed(0)
    inputs, labels = torch.randn(30, 4), np.arange(30) % 3
    parts = [np.arange(0, 5), np.arange(5, 9), np.arange(9, 30)]
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    network = Network(module)
    x, buffers = network.initial()
    measured = train_set_metrics(network, InMemoryFederation(inputs, labels, parts, 3), x, buffers)
    loss = cross_entropy(module(inputs), torch.from_numpy(labels))
    norm = sum(float(g.square().sum()) for g in torch.autograd.grad(loss, list(module.parameters())))
    assert measured["train_set_loss"] == pytest.approx(float(loss), rel=1e-5)
    assert measured["gradient_norm_squared"] == pytest.approx(norm, rel=1e-4)
    right = (module(inputs).argmax(dim=1).numpy() == labels).mean()
    assert measured["train_set_accuracy"] == pytest.approx(right)


def test_a_run_records_it_and_is_otherwise_unchanged() -> None:
    options = {"dataset": "digits", "clients": 5, "rounds": 2, "epochs": 1}
    plain = fedwcm.run("fedwcm", **options)  # type: ignore[arg-type]
    diagnosed = fedwcm.run("fedwcm", diagnostics=["train_set"], **options)  # type: ignore[arg-type]
    assert [r.test_loss for r in plain.history] == [r.test_loss for r in diagnosed.history]
    assert all((r.number("gradient_norm_squared") or 0) > 0 for r in diagnosed.history)
