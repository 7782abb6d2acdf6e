"""The engine trains on every long-tail loss, and draws its batches, as the formulas say, round by round."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from fedwcm.samplers import SAMPLERS

from .longtail_rounds import (
    CLOSE,
    COHORTS,
    COUNTS,
    HOLDINGS,
    STACKED,
    Settings,
    assert_all_different,
    assert_models,
    balanced_epoch,
    played,
    transcription,
)
from .zoo_losses import (
    Labels,
    Loss,
    Vector,
    class_weights,
    cross_entropy,
    deferred_weights,
    focal,
    ldam,
    ldam_margins,
    over_length,
    prior_ce,
    prior_of,
    through_length,
)
from .zoo_two_layer import Batch, Clients, TwoLayer

LossOf = Callable[[int, int, Vector, Labels], Loss]  # of (client, round, logits, labels)
RoundResult = tuple[list[Vector], list[float]]  # the models, and the training loss of each round with an answer

ROUNDS = 10  # of the engine's population: the rounds that are played are its first ones
ONLY_PRESENT: dict[str, Any] = {"normalise": "present", "absent": "zero"}


def trained(loss: LossOf, *, lengths: bool = False, sampler: str = "uniform") -> RoundResult:
    """FedAvg on this loss; with `lengths`, of logits over the length of the features."""
    losses: list[float] = []

    def run(x0: Any, net: TwoLayer, data: Any, sizes: Any, cohorts: Any, **local: Any) -> list[Vector]:
        clients = Clients(data, sizes, cohorts, **local)

        def one_round(r: int, cohort: list[int], eta: float, x: Vector) -> Vector:
            seen: dict[int, list[float]] = {k: [] for k in cohort}

            def step(k: int) -> Callable[[Batch, Vector], Vector]:
                def gradient(batch: Batch, y: Vector) -> Vector:
                    z, f = net.logits(y, batch.inputs), net.features(y, batch.inputs)
                    value, d = loss(k, r, over_length(z, f) if lengths else z, batch.labels)
                    seen[k].append(value)
                    d_z, d_f = through_length(d, z, f) if lengths else (d, None)
                    return net.backward(y, batch.inputs, d_z, d_features=d_f)

                return gradient

            models = {k: clients.train(k, r, eta, x, step(k)) for k in cohort}
            losses.append(float(np.mean([np.mean(values) for values in seen.values()])))
            return clients.merge(x, models)

        return clients.fed.run(x0, one_round)

    return transcription(run, sampler=sampler), losses


def counts(k: int, prior: str) -> Any:
    return COUNTS[k] if prior == "client" else COUNTS.sum(axis=0)


def focal_case(gamma: float) -> tuple[Settings, RoundResult]:
    return {"loss.name": "focal", "loss.gamma": gamma}, trained(lambda k, r, z, y: focal(z, y, gamma))


def prior_case(prior: str) -> tuple[Settings, RoundResult]:
    settings = {"loss.name": "prior_ce", "loss.prior": prior}
    return settings, trained(lambda k, r, z, y: prior_ce(z, y, prior_of(counts(k, prior))))


def weights_case(scheme: str, prior: str, beta: float = 0.9999) -> tuple[Settings, RoundResult]:
    """Weights of mean 1 over the classes that occur, and a mean over the number of samples."""

    def loss(k: int, r: int, z: Vector, y: Labels) -> Loss:
        return cross_entropy(z, y, class_weights(counts(k, prior), scheme, beta=beta, **ONLY_PRESENT), "samples")

    settings = {"loss.scheme": scheme, "loss.prior": prior, "loss.beta": beta}
    return {"loss.name": "class_weights", **settings}, trained(loss)


def ldam_case(
    prior: str, drw: float, beta: float = 0.9999, scale: float = 8.0, margin: float = 0.5, lengths: bool = True
) -> tuple[Settings, RoundResult]:
    """Logits over the length of the features rather than cosines, unless `lengths` is false.

    A scale of 30 makes steps of this lr so large that they multiply rounding errors.
    """

    def loss(k: int, r: int, z: Vector, y: Labels) -> Loss:
        n = counts(k, prior)
        weights = deferred_weights(n, r, int(np.ceil(drw * ROUNDS)), beta=beta, **ONLY_PRESENT)
        return ldam(z, y, ldam_margins(n, margin), scale, weights, "samples")

    settings = {
        "prior": prior,
        "drw": drw,
        "beta": beta,
        "scale": scale,
        "max_margin": margin,
        "normalize": lengths,
    }
    dotted = {f"loss.{key}": value for key, value in settings.items()}
    return {"loss.name": "ldam", **dotted}, trained(loss, lengths=lengths)


def sampler_case(loss: LossOf, **settings: Any) -> tuple[Settings, RoundResult]:
    return {"sampler.name": "balanced", **settings}, trained(loss, sampler="balanced")


CASES: dict[str, Callable[[], tuple[Settings, RoundResult]]] = {
    "focal-2": lambda: focal_case(2.0),
    "focal-0.5": lambda: focal_case(0.5),
    "prior-client": lambda: prior_case("client"),
    "prior-global": lambda: prior_case("global"),
    "inverse-client": lambda: weights_case("inverse", "client"),
    "inverse-global": lambda: weights_case("inverse", "global"),
    "effective-client": lambda: weights_case("effective", "client", 0.9),
    "effective-global": lambda: weights_case("effective", "global", 0.99),
    "ldam-without-weights": lambda: ldam_case("client", 1.0),
    "ldam-deferred": lambda: ldam_case("client", 0.3),
    "ldam-deferred-between-rounds": lambda: ldam_case("global", 0.35, 0.99, 5.0, 0.3),
    "ldam-weighted-from-the-start": lambda: ldam_case("client", 0.0, 0.9),
    "ldam-of-plain-logits": lambda: ldam_case("global", 0.4, 0.9, 3.0, 0.8, lengths=False),
    "balanced-sampler": lambda: sampler_case(lambda k, r, z, y: cross_entropy(z, y)),
    "balanced-sampler-focal": lambda: sampler_case(lambda k, r, z, y: focal(z, y), **{"loss.name": "focal"}),
}


@cache
def case(name: str) -> tuple[Settings, RoundResult]:
    return CASES[name]()


@STACKED
@pytest.mark.parametrize("name", CASES)
def test_the_engine_trains_on_the_formula(name: str, stacked: bool) -> None:
    settings, (models, losses) = case(name)
    states = played(settings, stacked)
    assert_models(states, models)
    np.testing.assert_allclose(
        [record.train_loss for _, record in states if record.train_loss is not None], losses, **CLOSE
    )


def test_no_two_losses_have_the_same_outcome() -> None:
    assert_all_different([case(name)[1][0][-1] for name in CASES])


def test_the_setting_tells_readings_apart() -> None:
    """Clients miss classes, one round has nobody with a certain class, and one has no answer."""
    held = [COUNTS[list(cohort)].sum(axis=0) > 0 for cohort in COHORTS]
    assert (COUNTS == 0).any()
    assert held[0].all()
    assert not held[1].all()
    assert not held[2].any()
    assert COUNTS.sum(axis=0).all()


def test_the_balanced_sampler_is_its_law() -> None:
    """Each draw is where its uniform number falls, so that probabilities are exact, not near."""
    for _, labels in HOLDINGS:
        drawn = SAMPLERS["balanced"]().epoch(labels, np.random.default_rng(3))
        np.testing.assert_array_equal(drawn, balanced_epoch(labels, np.random.default_rng(3)))
