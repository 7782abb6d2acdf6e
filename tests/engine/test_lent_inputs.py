"""What the engine keeps is never writable for a user's model: one that works in place equals one that does not."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedwcm
from fedwcm.engine.evaluate import evaluate
from fedwcm.engine.network import Network

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(200, 6)).astype(np.float32), np.arange(200) % 4
IMAGES = RNG.normal(size=(120, 1, 5, 5)).astype(np.float32)


class Shifted(nn.Module):
    """Works on its input in one of three ways: a new tensor, in place, or in place behind autograd's back."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.head = how, nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "new":
            x = x - 0.5
        elif self.how == "in place":
            x -= 0.5
        else:
            x.data.sub_(0.5)
        scores: Tensor = self.head(x)
        return scores


def trained(how: str, method: str, backend: str, **options: object) -> fedwcm.Result:
    torch.manual_seed(0)
    return fedwcm.run(
        method,
        dataset=(X, Y),
        model=lambda input_shape, classes: Shifted(how),
        clients=6,
        participation=0.5,
        rounds=3,
        val_fraction=0.2,
        backend=backend,  # type: ignore[arg-type]
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("how", ["in place", "unseen"])
def test_diagnostics_and_evaluation_leave_the_data_alone(how: str) -> None:
    options = {"diagnostics": ["train_set", "concentration"]}
    new, other = (trained(each, "fedavg", "sequential", **options) for each in ("new", how))
    keys = ("test_loss", "train_set_loss", "gradient_norm_squared", "concentration")
    assert [[r.number(k) for k in keys] for r in new.history] == [
        [r.number(k) for k in keys] for r in other.history
    ]


def test_inputs_survive_every_forward_pass() -> None:
    makers: list[Callable[[], nn.Module]] = [
        lambda: nn.Sequential(nn.LeakyReLU(inplace=True), nn.Flatten(), nn.Linear(25, 4)),
        lambda: nn.Sequential(nn.ReLU6(inplace=True), nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(18, 4)),
    ]
    for make in makers:
        network, inputs = Network(make()), torch.from_numpy(IMAGES)
        labels, before = torch.zeros(len(inputs), dtype=torch.int64), inputs.clone()
        for _ in range(3):
            evaluate(network, *network.initial(), inputs, labels, 4)
            network.set_training_mode()
            network.train_outputs(inputs)
        assert torch.equal(inputs, before)


def test_evaluation_of_a_model_that_writes_to_its_weights_spares_the_servers() -> None:
    network = Network(nn.Sequential(nn.Embedding(9, 4, max_norm=0.1), nn.Flatten(), nn.Linear(12, 3)))
    x, buffers = network.initial()
    before, tokens = x.clone(), torch.arange(9).reshape(3, 3)
    evaluate(network, x, buffers, tokens, torch.zeros(3, dtype=torch.int64), 3)
    assert torch.equal(x, before)
