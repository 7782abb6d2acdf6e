"""Clients on a cluster: what comes out is what one process makes, whoever trains whom."""

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch

from fedwcm.engine.client import Broadcast
from fedwcm.engine.options import Aggregation, ParticipationOptions
from fedwcm.engine.participation import Turns, UnequalEpochs
from fedwcm.engine.rounds import Rounds
from fedwcm.methods import METHODS

from ..factories import IMAGE, clusters, conv_batchnorm, make_rounds, make_trainer, mlp, run_rounds
from .conftest import ray_rounds, wait_for

pytest.importorskip("ray", reason="needs fedwcm[ray]")

from fedwcm.engine.backends.on_ray.backend import RemoteUploads
from fedwcm.engine.backends.on_ray.cluster import Cluster
from fedwcm.engine.backends.on_ray.packing import pack

ROUNDS = 3


def sequential(method: Any, module: Any = mlp, data: Any = None, **options: Any) -> list[tuple[Any, Any]]:
    data = data or clusters()
    return run_rounds(
        make_rounds(make_trainer(method, data.federation, module()), data.federation, **options), ROUNDS
    )


def assert_same_up_to_rounding(played: Any, expected: Any) -> None:
    """The models of float64 to its rounding, and the records."""
    for (state, record), (same, measures) in zip(played, expected, strict=True):
        torch.testing.assert_close(state.x, same.x, rtol=1e-11, atol=1e-13)
        for key, value in vars(measures).items():
            close = value if value is None else pytest.approx(value, rel=1e-9, abs=1e-12)
            assert getattr(record, key) == close, key


def test_workers_make_the_model_of_one_process_and_keep_the_state_of_clients(cluster: Any) -> None:
    method = METHODS["scaffold"]()
    rounds = ray_rounds(method)
    with Cluster(None) as users:  # as a comparison is: its runs share their workers
        assert_same_up_to_rounding(run_rounds(rounds, ROUNDS), sequential(method))
        assert len(rounds.store.visited_clients()) == len(rounds.federation.samples)
        workers = set(users._spares[0.0])
        assert workers
        other = METHODS["fedcm"]()
        assert_same_up_to_rounding(run_rounds(ray_rounds(other), ROUNDS), sequential(other))
        shared = set(users._spares[0.0])  # a second worker may be ready late
        assert workers <= shared
        assert len(shared) <= 2
    assert not users._spares


def test_chosen_clients_take_their_own_steps_on_a_cluster_too(cluster: Any) -> None:
    def unequal(rounds: Rounds) -> Rounds:
        samples, counts, population = rounds.federation.samples, rounds.reported_counts, rounds.trainer.population
        options = ParticipationOptions(fraction=0.6, speeds=1.0, deadline=1.5)
        return replace(rounds, turns=Turns(options, UnequalEpochs(most=3), population, samples, counts, 0))

    method, data = METHODS["fednova"](), clusters()
    plain = unequal(make_rounds(make_trainer(method, data.federation, mlp()), data.federation))
    played = run_rounds(unequal(ray_rounds(method)), ROUNDS)
    assert_same_up_to_rounding(played, run_rounds(plain, ROUNDS))
    assert len({int(state.turns["steps"].sum()) for state, _ in played}) > 1


def test_an_unknown_upload_names_those_that_there_are() -> None:
    forms = {"delta": ((3,), torch.float32)}
    uploads = RemoteUploads(np.arange(2), cast(Any, None), forms, {}, {"delta": np.ones(2)})  # type: ignore[arg-type]
    for ask in (lambda: uploads.sum("dleta", np.ones(2)), lambda: uploads.norms("dleta")):
        with pytest.raises(ValueError, match=r"there is no upload 'dleta': .* 'delta'"):
            ask()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedcm", "fedwcm", "feddyn", "mime", "mofedsam", "fedsmoo"])
def test_neither_the_number_of_workers_nor_who_trains_whom_changes_a_bit(name: str, cluster: Any) -> None:
    method = METHODS[name]()
    played = [run_rounds(ray_rounds(method, workers), ROUNDS) for workers in (1, 2)]
    assert_same_up_to_rounding(played[0], sequential(method))
    for (state, record), (same, measures) in zip(*played, strict=True):
        assert torch.equal(state.x, same.x)
        assert record == measures


@pytest.mark.slow
def test_buffers_and_robust_rules_come_through(cluster: Any) -> None:
    data, rule = clusters(shape=IMAGE), Aggregation(rule="median")
    rounds = ray_rounds(METHODS["fedavg"](), module=conv_batchnorm, data=data, aggregation=rule)
    expected = sequential(METHODS["fedavg"](), conv_batchnorm, data, aggregation=rule)
    assert_same_up_to_rounding(run_rounds(rounds, ROUNDS), expected)


@pytest.mark.slow
def test_workers_share_gpus(cluster: Any) -> None:
    from fedwcm.engine.backends.on_ray.cluster import room_for

    node = cluster.add_node(num_cpus=1, num_gpus=2, object_store_memory=100 * 2**20)
    try:
        wait_for(lambda: room_for(0.5) == 4)
        assert (room_for(0.3), room_for(1), room_for(2)) == (6, 2, 1)
        method = METHODS["fedavg"]()
        rounds = ray_rounds(method, workers=0, gpus=0.5)
        assert_same_up_to_rounding(run_rounds(rounds, ROUNDS), sequential(method))
    finally:
        cluster.remove_node(node)


CLUSTER_AND_PROCESS: Any = (("ray", {"run.workers": 2}), ("vectorized", {}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"data.dataset": "digits", "data.shared": True},
        {"data.dataset": "digits", "data.shared": False},
        {"data.dataset": "synthetic"},
    ],
    ids=["shared data", "sent data", "drawn data"],
)
def test_workers_are_sent_the_data_unless_they_have_them(
    settings: dict[str, object], cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fedwcm
    from fedwcm.engine.backends.on_ray import pool

    sent = list[str]()
    monkeypatch.setattr(pool, "pack", lambda value: sent.append(type(value).__name__) or pack(value))  # type: ignore[func-returns-value]
    common = {"participation.fraction": 0.5, "local.epochs": 1, **settings}
    results = [
        fedwcm.run("scaffold", settings={**common, **workers}, clients=8, rounds=2, model="mlp", backend=backend)
        for backend, workers in CLUSTER_AND_PROCESS
    ]
    is_sent = any("Federation" in name for name in sent)
    assert is_sent == (settings == {"data.dataset": "digits", "data.shared": False})
    one, other = (result.model.state_dict() for result in results)
    for key, value in one.items():
        torch.testing.assert_close(value, other[key], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_round_is_put_into_the_object_store_once(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedwcm.engine.backends.on_ray import backend

    broadcasts = list[object]()

    def counted(value: object) -> Any:
        if isinstance(value, Broadcast):
            broadcasts.append(value)
        return pack(value)

    monkeypatch.setattr(backend, "pack", counted)
    run_rounds(ray_rounds(METHODS["fedavg"]()), ROUNDS)
    assert len(broadcasts) == ROUNDS
