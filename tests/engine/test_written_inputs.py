"""A model that writes into its inputs trains and is tested as one that works on a copy of them."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedwcm
from fedwcm.engine.network import Network

LABELS = np.arange(120) % 3
SAMPLES = np.random.default_rng(0).normal(size=(120, 5)) + np.eye(5)[LABELS]


class Shifted(nn.Module):
    """Subtracts a half from its inputs, in place or not."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.in_place, self.body = in_place, nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        if self.in_place:
            x -= 0.5
        else:
            x = x - 0.5
        logits: Tensor = self.body(x)
        return logits


@pytest.mark.parametrize("backend", ["sequential", "vectorized", "parallel"])
@pytest.mark.parametrize("method", ["fedavg", "mofedsam", "mime"])
def test_writing_into_the_inputs_changes_nothing(method: str, backend: str) -> None:
    before = SAMPLES.copy()
    options = {"run.backend": backend, "run.workers": 2} if backend == "parallel" else {"run.backend": backend}
    runs = [
        fedwcm.run(
            method,
            dataset=(SAMPLES, LABELS),
            model=Shifted(in_place=in_place),
            clients=4,
            participation=1.0,
            rounds=3,
            settings=options,
        )
        for in_place in (False, True)
    ]
    losses = [[(r.train_loss, r.test_loss) for r in run.history] for run in runs]
    assert losses[0] == losses[1]
    np.testing.assert_array_equal(SAMPLES, before)


def test_a_model_that_writes_only_while_it_trains_is_told_apart() -> None:
    network, inputs = Network(nn.Sequential(nn.Dropout(0.5, inplace=True), nn.Linear(5, 3))), torch.ones(4, 5)
    network.module.eval()
    network(inputs)
    network.set_training_mode()
    network(inputs)
    assert (inputs == 1.0).all()


def test_a_model_that_writes_at_some_calls_only_is_refused() -> None:
    module = Shifted(in_place=False)
    network = Network(module)
    network(torch.ones(2, 5))
    module.in_place = True
    with pytest.raises(ValueError, match=r"Shifted changes its input in place"):
        network(torch.ones(2, 5))
