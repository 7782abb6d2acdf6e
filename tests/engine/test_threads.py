"""Runs in threads of one process equal the same runs one after the other, bit by bit."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedwcm
from fedwcm.engine.backends.plan import threads
from fedwcm.engine.evaluate import CHUNK, LARGE, evaluate
from fedwcm.engine.network import Network
from fedwcm.experiment.build import Experiment, build


def dropout_model(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, classes))


@pytest.mark.parametrize("model", ["mlp", dropout_model])
def test_threads_do_not_share_random_numbers(model: object) -> None:
    def losses(seed: int) -> list[tuple[float | None, float | None]]:
        settings = {"run.backend": "sequential"}
        run = fedwcm.run(
            "fedcm",
            dataset="digits",
            model=model,  # type: ignore[arg-type]
            clients=8,
            participation=0.5,
            rounds=2,
            epochs=1,
            seed=seed,
            settings=settings,
        )
        return [(record.train_loss, record.test_loss) for record in run.history]

    alone = [losses(seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(losses, range(8))) == alone


def test_runs_in_threads_are_built_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    building, most = [0], [0]

    def watched(*args: Any) -> Experiment:
        building[0] += 1
        most[0] = max(most[0], building[0])
        time.sleep(0.05)
        experiment = build(*args)
        building[0] -= 1
        return experiment

    monkeypatch.setattr("fedwcm.experiment.start.build", watched)
    with ThreadPoolExecutor(4) as pool:
        small: dict[str, Any] = {"dataset": "digits", "rounds": 1, "clients": 4, "participation": 1.0}
        list(pool.map(lambda seed: fedwcm.run("fedavg", seed=seed, **small), range(4)))
    assert most == [1]


def test_chunks_evaluated_at_the_same_time_stay_in_order() -> None:
    torch.manual_seed(0)
    network = Network(nn.Sequential(nn.Flatten(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)))
    assert network.size >= LARGE
    inputs, labels = torch.randn(4 * CHUNK + 7, 16, 16), torch.randint(10, (4 * CHUNK + 7,))
    found = []
    for count in (1, 3):
        with threads(count):
            found.append(evaluate(network, *network.initial(), inputs, labels, 10))
            assert torch.get_num_threads() == count
    one, several = found
    assert np.array_equal(one.predicted, several.predicted)
    assert np.allclose(one.losses, several.losses, atol=1e-6)
    assert np.isclose(one.loss, several.loss)
