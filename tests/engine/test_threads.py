"""Runs in threads of one process equal the same runs one after the other, bit by bit."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch import nn

import fedwcm


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
