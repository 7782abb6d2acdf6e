"""The engine runs FedIC as its formulas say, round by round: models and calibrations."""

from typing import Any

import numpy as np
import pytest

from fedwcm.core.rng import Purpose, generator

from .finite_differences import derivative
from .longtail_rounds import CLOSE, DATA, NET, SEED, STACKED, assert_models, played, settings_of, transcription
from .zoo_fedic import Rows, Server, run_fedic, teach
from .zoo_losses import Labels

INPUTS, LABELS = np.asarray(DATA.inputs, dtype=np.float64), DATA.labels
CASES: list[dict[str, Any]] = [
    {"distill_steps": 7, "distill_lr": 0.02, "labelled_batch": 6, "soft_batch": 9},
    {
        "distill_steps": 4,
        "distill_lr": 0.1,
        "temperature": 0.7,
        "soft": 0.9,
        "labelled_batch": 11,
        "soft_batch": 500,
    },
]


def rows_of(options: dict[str, Any], r: int) -> tuple[Rows, Rows, Rows, Rows]:
    """The rows of every batch of a round, in the order in which the server draws them."""
    rng, share = generator(SEED, Purpose.SERVER, r), 1.0 / np.bincount(LABELS)[LABELS]
    size, many = options["labelled_batch"], min(options["soft_batch"], len(LABELS))

    def labelled() -> Labels:
        return rng.choice(len(LABELS), size, p=share / share.sum())

    steps = range(options["distill_steps"])
    first, second = ([labelled() for _ in steps] for _ in range(2))
    both = [(rng.choice(len(LABELS), many, replace=False), labelled()) for _ in steps]
    return iter(first), iter(second), iter([hard for _, hard in both]), iter([soft for soft, _ in both])


def transcribed(options: dict[str, Any]) -> Any:
    numbers = {"temperature": 2.0, "soft": 0.5, **options}
    steps, lr = numbers["distill_steps"], numbers["distill_lr"]
    server = Server(
        INPUTS, LABELS, lambda r: rows_of(options, r), steps, lr, numbers["temperature"], numbers["soft"]
    )
    return transcription(run_fedic, server=server)


@STACKED
@pytest.mark.parametrize("options", CASES, ids=["defaults", "others"])
def test_fedic(options: dict[str, Any], stacked: bool) -> None:
    states = played(settings_of("fedic", options), stacked)
    models, thetas = transcribed(options)
    assert_models(states, models)
    np.testing.assert_allclose(states[-1][0].method["calibration"].numpy(), thetas[-1], **CLOSE)
    plain = played(settings_of("fedavg"), stacked)[0][0].x.numpy()
    assert np.abs(models[0] - plain).max() > 1e-3


def test_the_written_gradient_of_the_calibration_is_its_slope() -> None:
    rng, (n, c, d) = np.random.default_rng(0), (5, NET.classes, NET.hidden)
    z, f, own, by = (
        rng.normal(size=(3, n, c)),
        rng.normal(size=(n, d)),
        rng.normal(size=(n, c)),
        rng.normal(size=(n, c)),
    )
    theta = rng.normal(size=3 * c + d + 2)
    slope = derivative(lambda point: float((teach(point, z, f, own)[0] * by).sum()), theta)
    np.testing.assert_allclose(teach(theta, z, f, own)[1](by), slope, rtol=1e-6, atol=1e-8)
