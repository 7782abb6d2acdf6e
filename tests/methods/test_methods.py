"""Laws of FedAvg, FedCM, FedWCM and FedWCM-X."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedwcm.balance import local_deviations, momentum_gain
from fedwcm.config.options import make
from fedwcm.core.method import Method
from fedwcm.core.types import Report
from fedwcm.engine.rounds import ServerState
from fedwcm.methods import METHODS
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.fedcm import FedCM
from fedwcm.methods.fedwcm import FedWCM, FedWCMX
from tests.factories import (
    BY_STEPS,
    Bench,
    Clusters,
    Scripted,
    clusters,
    divided,
    linear,
    make_rounds,
    make_trainer,
    run_rounds,
)
from tests.specimens import Point, Quadratic

FOUR: list[Callable[..., Method]] = [FedAvg, FedCM, FedWCM, FedWCMX]
WITH_MOMENTUM: list[Callable[..., FedCM]] = [FedCM, FedWCM, FedWCMX]
DATA = clusters()
COHORTS = [[0, 2, 3], [1, 2, 4], [2], [0, 1, 2, 3, 4], [1, 4]]


def run(method: Method, data: Clusters = DATA, rounds: int = 5, **options: Any) -> list[tuple[ServerState, Any]]:
    """Rounds of softmax regression with scripted cohorts and a decaying rate."""
    training = make_trainer(method, data.federation, linear(), stacked=True, **options)
    engine = make_rounds(training, data.federation, participation=Scripted(COHORTS), block=8, lr=0.3, lr_decay=0.9)
    return run_rounds(engine, rounds)


def assert_same_run(one: Method, other: Method, data: Clusters, exactly: bool) -> None:
    for (mine, _), (theirs, _) in zip(run(one, data), run(other, data), strict=True):
        if exactly:
            assert torch.equal(mine.x, theirs.x)
        np.testing.assert_allclose(mine.x.numpy(), theirs.x.numpy(), rtol=1e-12, atol=1e-14)


def balanced(sizes: tuple[int, ...]) -> Clusters:
    """Clients of these sizes (multiples of 3) whose classes are skewed, but balanced over all of them."""
    rng = np.random.default_rng(2)
    total = sum(sizes)
    labels = np.sort(np.arange(total) % 3)
    order = np.argsort(labels + 0.8 * rng.normal(size=total))
    parts = [np.sort(rows) for rows in np.split(order, np.cumsum(sizes)[:-1])]
    inputs = np.eye(3)[labels] @ rng.normal(size=(3, 4)) + rng.normal(size=(total, 4))
    return divided(inputs, labels, parts)


# --- reductions --------------------------------------------------------------------------------------


def test_fedcm_with_alpha_1_is_fedavg_with_even_weights() -> None:
    assert_same_run(FedCM(alpha=1.0), FedAvg(average="uniform"), DATA, exactly=True)
    assert_same_run(FedCM(alpha=1.0, average="samples"), FedAvg(), DATA, exactly=True)


def test_fedavg_weighs_by_samples_unless_told_otherwise() -> None:
    assert not torch.allclose(run(FedAvg())[0][0].x, run(FedAvg(average="uniform"))[0][0].x, rtol=1e-4)


def test_fedwcm_on_balanced_classes_and_equal_sizes_is_fedcm() -> None:
    data = balanced((24,) * 5)
    assert len(set(data.federation.counts.sum(axis=0))) == 1
    assert (data.federation.counts.std(axis=0) > 1).all()
    assert_same_run(FedWCM(alpha_rule="discrepancy"), FedCM(), data, exactly=True)
    assert_same_run(FedWCMX(alpha_rule="discrepancy"), FedCM(), data, exactly=False)
    assert not torch.allclose(run(FedWCM())[0][0].x, run(FedCM())[0][0].x, rtol=1e-4)


def test_fedwcm_by_heterogeneity_is_fedcm_where_all_clients_are_alike() -> None:
    labels = np.tile(np.repeat([0, 1, 2], [16, 6, 2]), 5)
    inputs = np.eye(3)[labels] @ np.random.default_rng(3).normal(size=(3, 4))
    data = divided(inputs, labels, np.split(np.arange(len(labels)), 5))
    assert_same_run(FedWCM(alpha_rule="heterogeneity"), FedCM(), data, exactly=True)
    assert not torch.allclose(run(FedWCM(alpha_rule="heterogeneity"))[0][0].x, run(FedCM())[0][0].x, rtol=1e-4)


def test_fedwcm_on_balanced_clients_is_fedcm_and_otherwise_alpha_follows_them() -> None:
    labels = np.arange(120) % 3
    inputs = np.random.default_rng(2).normal(size=(120, 4))
    data = divided(inputs, labels, np.split(np.arange(120), 5))
    assert_same_run(FedWCM(), FedCM(), data, exactly=True)
    skewed = balanced((24,) * 5)
    apart = float(local_deviations(skewed.federation.counts).mean())
    assert float(run(FedWCM(), skewed)[0][0].method["alpha"]) == pytest.approx(1.0 - 0.9 * math.exp(-apart))


def test_fedwcm_x_is_fedwcm_for_clients_of_equal_size() -> None:
    data = clusters(sizes=(20,) * 5)
    assert_same_run(FedWCMX(), FedWCM(), data, exactly=False)
    assert not torch.allclose(run(FedWCMX())[0][0].x, run(FedWCM())[0][0].x, rtol=1e-4)


def test_fedwcm_without_both_parts_is_fedcm() -> None:
    assert_same_run(FedWCM(weighting=False, adaptive=False), FedCM(), DATA, exactly=True)


def test_the_printed_step_is_the_average_where_the_path_of_a_client_has_length_1() -> None:
    data, options = clusters(sizes=(20,) * 5), {"epochs": 1, "batch_size": 20}
    training = [
        make_trainer(FedWCM(server_step=step), data.federation, linear(), **options)  # type: ignore[arg-type]
        for step in ("average", "literal")
    ]
    average, literal = (run_rounds(make_rounds(t, data.federation, lr=1.0), 4)[-1][0].x for t in training)
    np.testing.assert_allclose(average.numpy(), literal.numpy(), rtol=1e-12)


def test_the_server_s_rate_scales_its_step() -> None:
    start = torch.nn.utils.parameters_to_vector(linear().parameters()).detach()
    for method in FOUR:
        whole, half = (run(method(server_lr=rate), rounds=1)[0][0] for rate in (1.0, 0.5))
        np.testing.assert_allclose((half.x - start).numpy(), 0.5 * (whole.x - start).numpy(), rtol=1e-9)


# --- gain --------------------------------------------------------------------------------------------


def test_the_nominal_gain_of_plain_sgd_is_that_of_the_formula() -> None:
    data = clusters(sizes=(10, 90, 20, 20, 30))
    population = make_trainer(FedCM(), data.federation, linear()).population
    announced = FedCM(momentum_norm="nominal").starting_gain(population, data.federation.samples)
    expected = momentum_gain(0.1, data.federation.samples, population.batch_size)
    assert announced == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("method", WITH_MOMENTUM)
def test_with_the_steps_really_taken_the_gain_is_1_minus_alpha(method: Callable[..., FedCM]) -> None:
    for (_, record), cohort in zip(run(method()), COHORTS, strict=True):
        assert record.extra["gain"] == pytest.approx(1 - record.extra["alpha"], rel=1e-12), cohort
    assert method().starting_gain(make_trainer(method(), DATA.federation, linear()).population, None) == 0.9  # type: ignore[arg-type]


def test_fedwcm_x_has_that_gain_even_where_weights_and_steps_differ_most() -> None:
    data = clusters(sizes=(3, 90, 8, 41, 17))
    records = [record for _, record in run(FedWCMX(temperature_scale=0.05), data)]
    assert all(record.extra["gain"] == pytest.approx(1 - record.extra["alpha"], rel=1e-12) for record in records)


@pytest.mark.parametrize("method", WITH_MOMENTUM)
@pytest.mark.parametrize("average", ["uniform", "samples"])
def test_the_gain_announced_at_the_start_is_that_of_the_first_round(
    method: Callable[..., FedCM], average: str
) -> None:
    """Weights by size alone and everybody in, so that the first round is the mean that is announced."""
    options: dict[str, Any] = {"momentum_norm": "nominal", "average": average}
    if method is not FedCM:
        options["weighting"] = False
    data = clusters(sizes=(10, 90, 20, 20, 30))
    training = make_trainer(method(**options), data.federation, linear())
    if method is FedWCMX:
        assert training.population.reference_steps == 2 * 5
    announced = training.method.starting_gain(training.population, data.federation.samples)  # type: ignore[attr-defined]
    (_, record), *_ = run_rounds(make_rounds(training, data.federation), 1)
    assert announced == pytest.approx(record.extra["gain"], rel=1e-12)
    assert record.extra["gain"] > 0.9


# --- points that stay --------------------------------------------------------------------------------


def quadratics(centres: Any, curvatures: Any, sizes: tuple[int, ...] = (20, 6, 33)) -> Clusters:
    """Clients whose loss is ½ Σ a (w − c)², the same on each of their samples."""
    rows = np.concatenate([np.asarray(curvatures, float), np.asarray(centres, float)], axis=1)
    inputs = np.repeat(rows, sizes, axis=0)
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return divided(inputs, np.arange(sum(sizes)) % 3 // 2 * 2, list(parts))


def descend(method: Method, data: Clusters, start: Any, rounds: int, epochs: int, lr: float = 0.05) -> ServerState:
    module = Point(torch.tensor(start, dtype=torch.float64))
    training = make_trainer(
        method, data.federation, module, loss=Quadratic(), stacked=True, epochs=epochs, batch_size=100
    )
    return run_rounds(make_rounds(training, data.federation, block=8, lr=lr), rounds)[-1][0]


@pytest.mark.parametrize("method", FOUR)
def test_every_method_finds_a_point_that_all_clients_share(method: Callable[..., Method]) -> None:
    data = quadratics([[1.5, -2.0]] * 3, [[1.0, 2.0], [0.5, 3.0], [2.0, 1.0]])
    state = descend(method(), data, [0.0, 0.0], rounds=100, epochs=1, lr=0.3)
    np.testing.assert_allclose(state.x.numpy(), [1.5, -2.0], atol=2e-2)


CENTRES, CURVATURES = [[0.0, 1.0], [4.0, -3.0], [-1.0, 2.0]], [[1.0, 4.0], [5.0, 0.5], [0.5, 2.0]]


def distance_to_optimum(epochs: int) -> float:
    """How far FedAvg ends up from the optimum of the clients' mean loss, one step an epoch."""
    share = np.array([20, 6, 33])[:, None] / 59
    a, c = np.array(CURVATURES), np.array(CENTRES)
    optimum = (share * a * c).sum(axis=0) / (share * a).sum(axis=0)
    state = descend(FedAvg(), quadratics(CENTRES, CURVATURES), [0.0, 0.0], rounds=60, epochs=epochs, lr=0.3)
    return float(np.abs(state.x.numpy() - optimum).max())


def test_fedavg_finds_the_optimum_with_one_local_step_and_misses_it_with_several() -> None:
    assert distance_to_optimum(epochs=1) < 1e-9
    assert distance_to_optimum(epochs=5) > 0.05


# --- options -----------------------------------------------------------------------------------------

NAN = float("nan")


@pytest.mark.parametrize(
    ("method", "field", "value"),
    [
        *[(method, "server_lr", value) for method in FOUR for value in (0.0, -1.0, NAN)],
        *[(method, "alpha", value) for method in WITH_MOMENTUM for value in (0.0, -0.1, 1.1, NAN)],
        *[(method, "temperature_scale", value) for method in (FedWCM, FedWCMX) for value in (0.0, -1.0, NAN)],
    ],
)
def test_values_out_of_range_are_refused_by_name(method: Callable[..., Method], field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} = {value}"):
        method(**{field: value})


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("fedavg", "average", "median"),
        ("fedcm", "momentum_norm", "exakt"),
        ("fedcm", "server_step", "adam"),
        ("fedwcm", "score", "rarity"),
        ("fedwcm", "alpha_rule", "none"),
        ("fedwcm", "q", "on"),
        ("fedwcm-x", "normalize", "yes"),
        ("fedwcm-x", "target", 0.5),
    ],
)
def test_unknown_choices_are_refused_by_name(name: str, field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"method.{field}"):
        make(METHODS[name], {field: value}, "method")


def test_reported_statistics_are_bounded_by_clients_of_one_class_and_a_distance_by_0() -> None:
    people = make_trainer(FedWCM(), DATA.federation, linear()).population
    kinds: list[dict[str, Any]] = [{}, {"alpha_rule": "heterogeneity"}, {"score": "local"}]
    plain, following, local = (FedWCM(**options).statistics_range(people) for options in kinds)
    assert plain.keys() == local.keys() == {"score"}
    assert following.keys() == {"score", "distance"}
    assert following["score"] == plain["score"]
    assert following["distance"][0] == local["score"][0] == 0.0


def test_a_misspelt_option_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(ValueError, match=r"method.alfa.*Did you mean 'method.alpha'"):
        make(METHODS["fedcm"], {"alfa": 0.1}, "method")


def test_a_target_that_is_no_distribution_stops_the_run_before_its_first_round() -> None:
    training = make_trainer(FedWCM(), DATA.federation, linear())
    with pytest.raises(ValueError, match=r"run\.target must sum to 1"):
        dataclasses.replace(training.population, target=np.array([0.5, 0.6, 0.1]))


def test_a_target_equal_to_the_gathered_distribution_makes_all_weights_equal() -> None:
    training = make_trainer(FedWCM(), DATA.federation, linear())
    uniform, own = training.population, dataclasses.replace(training.population, target=training.population.prior)
    scores = [FedWCM().client_statistics(DATA.federation.counts, facts)["score"] for facts in (uniform, own)]
    assert scores[0].std() > 0
    np.testing.assert_array_equal(scores[1], np.zeros(len(scores[1])))


@pytest.mark.parametrize("method", [FedCM, FedWCM, FedWCMX])
def test_alpha_1_switches_momentum_off_for_good(method: Callable[..., FedCM]) -> None:
    assert [record.extra["gain"] for _, record in run(method(alpha=1.0))] == [0.0] * 5


def test_registered_names_are_the_files_and_building_blocks_have_none() -> None:
    assert {"fedavg", "fedcm", "fedwcm", "fedwcm-x"} <= set(METHODS)
    assert "wcm" not in METHODS
    with pytest.raises(ValueError, match=r"unknown method 'fedwmc'.*Did you mean 'fedwcm'"):
        METHODS["fedwmc"]


def test_a_client_reports_its_score_and_never_its_counts() -> None:
    report: Report = Bench(FedWCM(), DATA, linear()).train().report
    assert report.keys() == {"score"}
    assert report["score"].shape == (len(BY_STEPS),)
