"""One setting in which the engine and the transcriptions of the long-tail methods run_rounds the same rounds.

It is made to tell readings apart: clients of unequal size with short last batches, that miss classes; a different
cohort each round, one without an answer and one in which nobody has a certain class; clients that return after
an absence; a decaying lr. All random numbers come from their addresses.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from fedwcm.config.recipes import RECIPES
from fedwcm.core.rng import Purpose, generator
from fedwcm.engine.network import Network
from fedwcm.engine.rounds import Rounds, ServerState
from fedwcm.engine.server import RoundMeasures
from fedwcm.losses import LOSSES
from fedwcm.methods import METHODS
from fedwcm.samplers import SAMPLERS

from .. import factories
from .zoo_losses import balanced_law
from .zoo_shared import Vector
from .zoo_two_layer import TwoLayer

SEED, CLASSES, HIDDEN, EPOCHS, BATCH = 5, 4, 5, 2, 8
COHORTS: Sequence[Sequence[int]] = [[0, 2, 3], [1, 4], [], [1, 3], [0, 2, 4], [1, 3]]
RATES: dict[str, Any] = {"local_lr": 0.2, "lr_decay": 0.8}
CLOSE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}
STACKED = pytest.mark.parametrize("stacked", [False, True], ids=["one-by-one", "stacked"])

DATA = factories.clusters(classes=CLASSES)
HOLDINGS = [(DATA.inputs[part], DATA.labels[part]) for part in DATA.parts]
COUNTS = DATA.federation.counts
NET = TwoLayer(factories.FEATURES, HIDDEN, CLASSES)

Settings = dict[str, Any]
Played = list[tuple[ServerState, RoundMeasures]]


def module() -> nn.Module:
    """The network in torch."""
    return factories.seeded(
        lambda: nn.Sequential(
            nn.Linear(factories.FEATURES, HIDDEN),
            nn.Tanh(),
            nn.Linear(HIDDEN, CLASSES),
        )
    )


@cache
def initial() -> Vector:
    return np.asarray(Network(module()).initial()[0].numpy(), dtype=np.float64)


def uniform_epoch(labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    return rng.permutation(len(labels))


def balanced_epoch(labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """A draw is where a uniform number falls on the line of the samples' probabilities."""
    ends = np.cumsum(balanced_law(labels))
    return np.searchsorted(ends / ends[-1], rng.random(len(labels)), side="right")


EPOCH_OF = {"uniform": uniform_epoch, "balanced": balanced_epoch}


@cache
def visited(client: int, round_: int, sampler: str = "uniform") -> list[NDArray[np.int64]]:
    """Which of its samples a client takes at each step of a round, from their address alone."""
    rng = generator(SEED, Purpose.BATCHES, round_, client)
    orders = [EPOCH_OF[sampler](HOLDINGS[client][1], rng) for _ in range(EPOCHS)]
    return [order[start : start + BATCH] for order in orders for start in range(0, len(order), BATCH)]


def transcription(
    run: Callable[..., Any],
    *,
    sampler: str = "uniform",
    cohorts: Sequence[Sequence[int]] = COHORTS,
    **options: Any,
) -> Any:
    """What a transcription over two layers makes of this setting."""
    batches = partial(visited, sampler=sampler)
    return run(initial(), NET, HOLDINGS, factories.SIZES, cohorts, batches=batches, **RATES, **options)


def settings_of(recipe: str, method: dict[str, Any] | None = None, loss: dict[str, Any] | None = None) -> Settings:
    """Those of a recipe, or of the method of this name, with these options of the method and of the loss."""
    base = RECIPES[recipe].settings if recipe in RECIPES else {"method.name": recipe}
    own = {f"method.{key}": value for key, value in (method or {}).items()}
    return {**base, **own, **{f"loss.{key}": value for key, value in (loss or {}).items()}}


def engine(
    settings: Settings, network: nn.Module, stacked: bool, cohorts: Sequence[Sequence[int]] = COHORTS
) -> Rounds:
    """The engine with these settings, dotted as in a recipe."""
    parts: dict[str, dict[str, Any]] = {
        "method": {"name": "fedavg"},
        "loss": {"name": "cross_entropy"},
        "sampler": {"name": "uniform"},
    }
    for key, value in settings.items():
        group, _, option = key.partition(".")
        parts[group][option] = value
    training = factories.make_trainer(
        METHODS[parts["method"].pop("name")](**parts["method"]),
        DATA.federation,
        network,
        stacked=stacked,
        loss=LOSSES[parts["loss"].pop("name")](**parts["loss"]),
        epochs=EPOCHS,
        batch_size=BATCH,
        seed=SEED,
    )
    return factories.make_rounds(
        replace(training, sampler=SAMPLERS[parts["sampler"].pop("name")](**parts["sampler"])),
        DATA.federation,
        participation=factories.Scripted(cohorts),
        block=64 if stacked else 1,
        lr=RATES["local_lr"],
        lr_decay=RATES["lr_decay"],
    )


def played(settings: Settings, stacked: bool) -> Played:
    """The states and records of every round, in float64; so are the states that objectives keep of clients."""
    network, before = module(), torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return factories.run_rounds(engine(settings, network, stacked), len(COHORTS))
    finally:
        torch.set_default_dtype(before)


def assert_models(states: Played, models: Sequence[Vector]) -> None:
    for r, ((state, _), x) in enumerate(zip(states, models, strict=True)):
        np.testing.assert_allclose(state.x.numpy(), x, **CLOSE, err_msg=f"round {r}")


def assert_all_different(outcomes: Sequence[Vector]) -> None:
    """No two of these, so that agreement with one of them means something."""
    apart = np.abs(np.array(outcomes)[:, None] - np.array(outcomes)[None]).max(axis=2)
    assert apart[np.triu_indices(len(outcomes), k=1)].min() > 1e-4
