"""Clients drawn on demand: the same whoever asks, different from each other, and never kept."""

import tracemalloc

import numpy as np
import pytest
import torch

import fedwcm
from fedwcm.data.synthetic import CLASSES, FEATURES, SAMPLES, SyntheticFederation

CPU = torch.device("cpu")


def federation(clients: int = 50, beta: float = 0.5, imbalance: float = 0.1, seed: int = 3) -> SyntheticFederation:
    return SyntheticFederation(clients, beta, imbalance, seed, CPU)


def test_a_client_is_the_same_in_whatever_order_it_is_asked_for() -> None:
    one, other = federation(), federation()
    other.shard(7)
    for client in (4, 0, 49):
        mine, theirs = one.shard(client), other.shard(client)
        assert torch.equal(mine.store.inputs, theirs.store.inputs)  # type: ignore[arg-type]
        np.testing.assert_array_equal(mine.labels, theirs.labels)


def test_clients_and_seeds_differ() -> None:
    inputs = [federation(seed=seed).shard(client).store.inputs for seed in (0, 1) for client in (0, 1)]
    assert all(not torch.equal(inputs[i], inputs[j]) for i in range(4) for j in range(i))  # type: ignore[arg-type]


def test_counts_are_those_of_the_shards() -> None:
    made = federation()
    for client in range(50):
        shard = made.shard(client)
        assert len(shard) == SAMPLES == made.samples[client]
        assert shard.store.inputs.shape == (SAMPLES, FEATURES)
        np.testing.assert_array_equal(np.bincount(shard.labels, minlength=CLASSES), made.counts[client])
    ids = torch.cat([made.shard(client).store.sample_ids for client in range(50)])
    assert len(ids.unique()) == 50 * SAMPLES


@pytest.mark.parametrize("imbalance", [1.0, 0.01])
def test_the_tail_is_as_long_as_asked_for(imbalance: float) -> None:
    totals = federation(20_000, imbalance=imbalance).counts.sum(axis=0)
    assert totals[-1] / totals[0] == pytest.approx(imbalance, rel=0.1)
    expected = imbalance ** (np.arange(CLASSES) / (CLASSES - 1))
    np.testing.assert_allclose(totals / totals.sum(), expected / expected.sum(), rtol=0.1)


def test_a_smaller_beta_gives_clients_fewer_classes() -> None:
    held = [np.count_nonzero(federation(500, beta=beta).counts, axis=1).mean() for beta in (0.05, 0.5, 50.0)]
    assert held[0] < held[1] < held[2]


def test_a_hundred_thousand_clients_cost_their_counts_only() -> None:
    tracemalloc.start()
    made = federation(100_000)
    made.shard(99_999)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.5 * (made.counts.nbytes + made.samples.nbytes)
    assert peak < 0.1 * 100_000 * SAMPLES * FEATURES * 4


def test_a_run_on_them_learns() -> None:
    result = fedwcm.run(
        "fedwcm",
        dataset="synthetic",
        clients=2000,
        beta=0.3,
        participation=0.01,
        rounds=10,
        batch_size=10,
        lr=0.05,
    )
    assert result.summary.final_accuracy > 0.25  # chance is 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 0}, "partition.clients = 0"),
        ({"beta": -1.0}, r"partition.beta = -1.0"),
        ({"partition": "fedgrab"}, "partition.name = 'fedgrab'"),
        ({"val_fraction": 0.1}, "data.val_fraction = 0.1 is not allowed: it must be 0.0 for synthetic data"),
        ({"settings": {"data.profile": "step"}}, "data.profile = 'step'"),
        ({"settings": {"run.worker_gpus": -1.0}}, "worker_gpus = -1.0"),
        ({"settings": {"run.worker_gpus": float("inf")}}, "worker_gpus = inf"),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fedwcm.run("fedavg", dataset="synthetic", rounds=1, **options)  # type: ignore[arg-type]


def test_dividing_them_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="nothing to load"):
        fedwcm.partition(dataset="synthetic")
