"""The engine does what the algorithm boxes say, round by round, under every option.

The reference gets its mini-batches from the addresses of the random numbers alone, so this also pins down
which samples a client visits at which step.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwcm.core.method import Method
from fedwcm.core.rng import Purpose, generator
from fedwcm.engine.network import Network
from fedwcm.engine.rounds import Rounds, ServerState
from fedwcm.methods import METHODS

from .. import factories
from ..reference.algorithm_boxes import run_reference
from ..reference.softmax_regression import loss_gradient

SEED, EPOCHS, BATCH = 5, 2, 8
DATA = factories.clusters()
COHORTS: Sequence[Sequence[int]] = [[0, 2, 3], [1, 2, 4], [], [3], [0, 1, 2, 3, 4], [1, 4]]
TARGET = (0.2, 0.3, 0.5)

LOCAL: dict[str, Any] = {"local_lr": 0.3, "epochs": EPOCHS, "batch_size": BATCH}
EXTRAS: list[dict[str, Any]] = [
    {"lr_decay": 0.8},
    {"weight_decay": 0.05},
    {"clip": 0.1},
    {"clip": 0.1, "weight_decay": 0.05, "lr_decay": 0.8},
    {"server_lr": 0.6},
]
MOMENTUM: list[dict[str, Any]] = [
    {"momentum_norm": "nominal"},
    {"server_step": "literal"},
    {"alpha0": 0.35},
    {"momentum_norm": "nominal", "server_step": "literal", "lr_decay": 0.8},
]
BALANCING: list[dict[str, Any]] = [
    {"score": "absolute"},
    {"alpha_rule": "temperature"},
    {"alpha_rule": "temperature-clients", "temperature_scale": 1.0},
    {"score": "local"},
    {"alpha_rule": "discrepancy"},
    {"alpha_rule": "heterogeneity"},
    {"q": "inverse"},
    {"q": "off"},
    {"temperature_scale": 1.0},
    {"weighting": False},
    {"adaptive": False},
    {"target": TARGET},
    {"target": TARGET, "score": "absolute", "alpha_rule": "temperature", "temperature_scale": 1.0},
]
CASES: list[tuple[str, dict[str, Any]]] = [
    *[("fedavg", case) for case in [{}, *EXTRAS]],
    *[("fedcm", case) for case in [{}, *EXTRAS, *MOMENTUM]],
    *[("fedwcm", case) for case in [{}, *EXTRAS, *MOMENTUM, *BALANCING]],
    *[("fedwcm-x", case) for case in [{}, *EXTRAS, *MOMENTUM, *BALANCING, {"normalize": False}]],
]
RUN_OPTIONS = ("lr_decay", "weight_decay", "clip", "target")

Vector = NDArray[np.float64]


@cache
def visited(client: int, round_: int) -> list[NDArray[np.int64]]:
    """The rows of each mini-batch of a client's round, from their address alone."""
    rng = generator(SEED, Purpose.BATCHES, round_, client)
    part = DATA.parts[client]
    orders = [part[rng.permutation(len(part))] for _ in range(EPOCHS)]
    return [order[start : start + BATCH] for order in orders for start in range(0, len(order), BATCH)]


def gradient(client: int, round_: int, step: int, w: Vector) -> Vector:
    rows = visited(client, round_)[step]
    return loss_gradient(w, DATA.inputs[rows], DATA.labels[rows], factories.CLASSES)[1]


def reference(method: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    x, _ = Network(factories.linear()).initial()
    counts = DATA.federation.counts
    return run_reference(x.numpy(), gradient, counts, COHORTS, method=method, **LOCAL, **options)


def engine(name: str, options: dict[str, Any], stacked: bool) -> Rounds:
    own = {"alpha" if k == "alpha0" else k: v for k, v in options.items() if k not in RUN_OPTIONS}
    method: Method = METHODS[name](**own)
    training = factories.make_trainer(
        method,
        DATA.federation,
        factories.linear(),
        stacked=stacked,
        epochs=EPOCHS,
        batch_size=BATCH,
        weight_decay=options.get("weight_decay", 0.0),
        clip=options.get("clip"),
        target=options.get("target"),
        seed=SEED,
    )
    return factories.make_rounds(
        training,
        DATA.federation,
        participation=factories.Scripted(COHORTS),
        block=64 if stacked else 1,
        lr=LOCAL["local_lr"],
        lr_decay=options.get("lr_decay", 1.0),
    )


def assert_same_state(state: ServerState, expected: dict[str, Any]) -> None:
    close: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}
    np.testing.assert_allclose(state.x.numpy(), expected["x"], **close)
    if "momentum" in state.method:
        np.testing.assert_allclose(state.method["momentum"].numpy(), expected["momentum"], **close)
        assert float(state.method["alpha"]) == pytest.approx(expected["alpha_next"], rel=1e-12)


@pytest.mark.parametrize(
    ("name", "options", "stacked"),
    [*((*case, True) for case in CASES), *((*case, False) for case in CASES if not case[1])],
    ids=lambda value: str(value).replace(" ", ""),
)
def test_the_engine_is_the_algorithm_box(
    name: str, options: dict[str, Any], stacked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = reference(name, options)
    updates = iter(factories.watch_updates(monkeypatch))
    played = factories.run_rounds(engine(name, options, stacked), len(COHORTS))
    for (state, record), box in zip(played, expected, strict=True):
        assert_same_state(state, box)
        assert record.participants == len(COHORTS[box["round"]])
        if not COHORTS[box["round"]]:
            assert "gain" not in record.extra
            continue
        np.testing.assert_allclose(next(updates)[1].weights, box["weights"], rtol=1e-12)
        if name != "fedavg":
            assert record.extra["gain"] == pytest.approx(box["gain"], rel=1e-12)
            assert record.extra["alpha"] == pytest.approx(box["alpha_used"], rel=1e-12)


@pytest.mark.parametrize(("name", "options"), [case for case in CASES if case[1]])
def test_every_option_changes_the_outcome_so_that_agreement_means_something(
    name: str, options: dict[str, Any]
) -> None:
    plain, changed = reference(name, {})[-1]["x"], reference(name, options)[-1]["x"]
    assert np.abs(plain - changed).max() > 1e-6


def test_the_clients_are_of_unequal_size_and_their_last_batches_short() -> None:
    steps = [len(visited(client, 0)) for client in range(5)]
    assert steps == [2 * 3, 2 * 1, 2 * 6, 2 * 2, 2 * 4]
    assert {len(visited(client, 0)[-1]) for client in range(5)} == {7, 1, 4, 6}


def test_the_engine_agrees_with_balanced_classes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target equal to the global distribution: infinite temperature, even weights, alpha at its base."""
    counts = DATA.federation.counts.sum(axis=0)
    target = tuple(float(share) for share in counts / counts.sum())
    updates = factories.watch_updates(monkeypatch)
    played = factories.run_rounds(
        engine("fedwcm", {"target": target, "alpha_rule": "discrepancy"}, stacked=True), len(COHORTS)
    )
    for (state, _), box in zip(played, reference("fedcm", {}), strict=True):
        assert_same_state(state, box)
    assert all(len(set(outcome.weights)) == 1 for _, outcome in updates)
