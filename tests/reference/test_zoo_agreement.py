"""The engine runs every method of the zoo as its formulas say, round by round.

The setting is made to tell readings apart: clients of unequal size with short last batches, a different
cohort each round, one without an answer, clients that return after an absence, and a decaying lr.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedwcm.core.method import Method
from fedwcm.core.rng import Purpose, generator
from fedwcm.engine.network import Network
from fedwcm.engine.rounds import Rounds
from fedwcm.methods import METHODS

from .. import factories
from .algorithm_boxes import run_reference
from .softmax_regression import loss_gradient
from .zoo_lesam import run_fedlesam, run_fedlesam_d, run_fedlesam_s
from .zoo_sam import run_fedgamma, run_fedsam, run_fedsmoo, run_fedspeed, run_mofedsam
from .zoo_server import run_fedadam, run_fedavgm, run_fedexp, run_fednova, run_fedprox, run_q_ffl, run_slowmo
from .zoo_shared import Vector
from .zoo_variance import run_fedavg_cheng, run_feddyn, run_mime, run_mimelite, run_pfedme, run_scaffold

SEED = 5
DATA = factories.clusters()
COHORTS: Sequence[Sequence[int]] = [[0, 2, 3], [1, 4], [], [1, 3], [0, 2, 4], [1, 3]]
LOCAL: dict[str, Any] = {"local_lr": 0.3, "epochs": 2, "batch_size": 8, "lr_decay": 0.8}
SAM: dict[str, Any] = {"rho": 0.2}
DUAL: dict[str, Any] = {"lam": 0.3}
MOMENTUM: dict[str, Any] = {"alpha": 0.3}
HALF: dict[str, Any] = {"server_lr": 0.6}
NOMINAL: dict[str, Any] = {"momentum_norm": "nominal"}

Run = Callable[..., list[Vector]]
ZOO: dict[str, tuple[Run, list[dict[str, Any]]]] = {
    "fedprox": (run_fedprox, [{"mu": 0.7}, {"mu": 0.7, **HALF}]),
    "fedavgm": (run_fedavgm, [{"beta": 0.6}, {"beta": 0.9, **HALF}]),
    "slowmo": (run_slowmo, [{"beta": 0.6}, {"beta": 0.6, "slow_lr": 0.7}]),
    "fedadam": (run_fedadam, [{}, {"beta1": 0.5, "beta2": 0.7, "eps": 0.1, "server_lr": 0.3}]),
    "fednova": (run_fednova, [{}, HALF]),
    "fedexp": (run_fedexp, [{"epsilon": 0.001}, {"epsilon": 0.01, **HALF}]),
    "q-ffl": (run_q_ffl, [{"q": 1.0}, {"q": 0.3, **HALF}]),
    "scaffold": (run_scaffold, [{}, HALF]),
    "feddyn": (run_feddyn, [DUAL, {**DUAL, **HALF}]),
    "pfedme": (run_pfedme, [{"lam": 2.0, "own_lr": 0.3, "own_steps": 3}, {"lam": 5.0, **HALF}]),
    "mime": (run_mime, [{"beta": 0.6}, {"beta": 0.9, **HALF}]),
    "mimelite": (run_mimelite, [{"beta": 0.6}, {"beta": 0.9, **HALF}]),
    "fedavg-cheng": (run_fedavg_cheng, [MOMENTUM, {**MOMENTUM, **HALF}, {**MOMENTUM, **NOMINAL}]),
    "fedsam": (run_fedsam, [SAM, {**SAM, **HALF}]),
    "mofedsam": (
        run_mofedsam,
        [{**MOMENTUM, **SAM, **more} for more in ({}, HALF, NOMINAL, {"server_step": "literal"})],
    ),
    "fedgamma": (run_fedgamma, [SAM, {**SAM, **HALF}]),
    "fedspeed": (run_fedspeed, [{**DUAL, **SAM, **more} for more in ({}, HALF, {"printed": True})]),
    "fedsmoo": (run_fedsmoo, [{**DUAL, **SAM, **more} for more in ({}, HALF, {"printed": True})]),
    "fedlesam": (run_fedlesam, [SAM, {**SAM, **HALF}, {**SAM, "memory": "server"}]),
    "fedlesam-s": (run_fedlesam_s, [SAM, {**SAM, **HALF}, {**SAM, "memory": "server"}]),
    "fedlesam-d": (run_fedlesam_d, [{**DUAL, **SAM, **more} for more in ({}, HALF, {"memory": "server"})]),
}
CASES = [(name, options) for name, (_, many) in ZOO.items() for options in many]
AVERAGES = ("uniform", "samples")
IN_TRANSCRIPTION: dict[tuple[str, str], dict[str, Any]] = {
    **{(name, "samples"): {"controls": "samples"} for name in ("scaffold", "fedgamma", "fedlesam-s")},
    **{
        (name, "samples"): {"average": "uniform", "relative": True}
        for name in ("feddyn", "fedspeed", "fedsmoo", "fedlesam-d")
    },
    **{(name, "uniform"): {"full_average": "uniform"} for name in ("mime", "mimelite")},
}
"""What the package's `average` means beyond the mean of the moves, where it says that it means more."""
IN_PACKAGE = {"eps": "epsilon", "slow_lr": "server_lr"}
"""Options that the package spells otherwise."""


@cache
def visited(client: int, round_: int) -> list[NDArray[np.int64]]:
    """The rows of each mini-batch of a client's round, from their address alone."""
    rng = generator(SEED, Purpose.BATCHES, round_, client)
    part, batch = DATA.parts[client], LOCAL["batch_size"]
    orders = [part[rng.permutation(len(part))] for _ in range(LOCAL["epochs"])]
    return [order[start : start + batch] for order in orders for start in range(0, len(order), batch)]


def gradient_over(rows: NDArray[np.int64], w: Vector) -> Vector:
    return loss_gradient(w, DATA.inputs[rows], DATA.labels[rows], factories.CLASSES)[1]


def gradient(client: int, round_: int, step: int, w: Vector) -> Vector:
    return gradient_over(visited(client, round_)[step], w)


def full_loss(client: int, w: Vector) -> float:
    rows = DATA.parts[client]
    return float(loss_gradient(w, DATA.inputs[rows], DATA.labels[rows], factories.CLASSES)[0])


def full_gradient(client: int, w: Vector) -> Vector:
    return gradient_over(DATA.parts[client], w)


def initial() -> Vector:
    x, _ = Network(factories.linear()).initial()
    return np.asarray(x.numpy(), dtype=np.float64)


def transcribed(name: str, options: dict[str, Any], average: str) -> list[Vector]:
    means = {"average": average, **IN_TRANSCRIPTION.get((name, average), {})}
    passes: dict[str, Any] = {"full_gradient": full_gradient} if name in ("mime", "mimelite") else {}
    passes |= {"full_loss": full_loss} if name == "q-ffl" else {}
    return outcome(name, tuple({**LOCAL, **options, **means, **passes}.items()))


@cache
def outcome(name: str, options: tuple[tuple[str, Any], ...]) -> list[Vector]:
    return ZOO[name][0](initial(), gradient, factories.SIZES, COHORTS, **dict(options))


def engine(name: str, options: dict[str, Any], average: str, stacked: bool) -> Rounds:
    own = {IN_PACKAGE.get(key, key): value for key, value in {**options, "average": average}.items()}
    method: Method = METHODS[name](**own)
    training = factories.make_trainer(
        method,
        DATA.federation,
        factories.linear(),
        stacked=stacked,
        epochs=LOCAL["epochs"],
        batch_size=LOCAL["batch_size"],
        seed=SEED,
    )
    return factories.make_rounds(
        training,
        DATA.federation,
        participation=factories.Scripted(COHORTS),
        block=64 if stacked else 1,
        lr=LOCAL["local_lr"],
        lr_decay=LOCAL["lr_decay"],
    )


def assert_agreement(name: str, options: dict[str, Any], average: str, stacked: bool) -> None:
    played = factories.run_rounds(engine(name, options, average, stacked), len(COHORTS))
    expected = transcribed(name, options, average)
    for r, ((state, _), x) in enumerate(zip(played, expected, strict=True)):
        np.testing.assert_allclose(state.x.numpy(), x, rtol=1e-10, atol=1e-12, err_msg=f"round {r}")


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda value: str(value).replace(" ", ""))
def test_the_engine_plays_the_formulas(name: str, options: dict[str, Any], average: str) -> None:
    assert_agreement(name, options, average, stacked=True)


@pytest.mark.parametrize("name", ZOO)
def test_so_it_does_with_one_client_at_a_time(name: str) -> None:
    assert_agreement(name, ZOO[name][1][0], "uniform", stacked=False)


def test_no_two_cases_have_the_same_outcome_so_that_agreement_means_something() -> None:
    last = np.array([transcribed(name, options, mean)[-1] for name, options in CASES for mean in AVERAGES])
    apart = np.abs(last[:, None] - last[None]).max(axis=2)
    assert apart[np.triu_indices(len(last), k=1)].min() > 1e-3


@pytest.mark.parametrize(
    ("name", "off"),
    [
        ("fedprox", {"mu": 0.0}),
        ("fedavgm", {"beta": 0.0}),
        ("slowmo", {"beta": 0.0}),
        ("mimelite", {"beta": 0.0}),
        ("fedsam", {"rho": 0.0}),
        ("q-ffl", {"q": 0.0}),
        ("mofedsam", {"alpha": 1.0, "rho": 0.0}),
        ("fedlesam", {"rho": 0.0}),
    ],
)
def test_a_transcription_without_its_own_part_is_fedavg(name: str, off: dict[str, Any]) -> None:
    counts = DATA.federation.counts
    plain = run_reference(initial(), gradient, counts, COHORTS, method="fedavg", **LOCAL)
    for x, box in zip(transcribed(name, off, "samples"), plain, strict=True):
        np.testing.assert_allclose(x, box["x"], rtol=1e-12, atol=1e-14)
