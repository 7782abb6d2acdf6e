"""A last batch of one sample: left out where BatchNorm could not train on it, in every engine alike."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedwcm
from fedwcm.core.batch import SampleStore, Shard
from fedwcm.core.rng import ClientGenerators, Purpose, generator
from fedwcm.core.types import Clients, Population
from fedwcm.engine.batches import fails_on_one_sample, smallest_batch, visits
from fedwcm.engine.network import Network
from fedwcm.samplers.uniform import Uniform

SIZES = (9, 8, 17, 2)
"""With batches of 8, two clients have a last batch of one sample."""


def batch_norm(track: bool = True) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(4, 5), nn.BatchNorm1d(5, track_running_stats=track), nn.Tanh(), nn.Linear(5, 2)
        )


def population(batch_size: int = 8, smallest: int = 1, **options: Any) -> Population:
    chosen = {"epochs": 2, **options}
    prior = np.array([0.5, 0.5])
    return Population(4, 2, 9.0, prior, rounds=1, batch_size=batch_size, smallest_batch=smallest, **chosen)


def trained(module: nn.Module, sizes: tuple[int, ...] = SIZES, method: str = "fedcm", **options: Any) -> Any:
    rng = np.random.default_rng(1)
    y = rng.integers(2, size=sum(sizes) + 40)
    x = rng.normal(size=(len(y), 4)).astype(np.float32) + y[:, None]
    several = options.get("backend", "auto") in ("auto", "parallel")
    settings = {"run.workers": 2 if several else 0, **options.pop("settings", {})}
    return fedwcm.run(
        method,
        dataset=(x[40:], y[40:], x[:40], y[:40]),
        clients=np.repeat(np.arange(len(sizes)), sizes),
        model=module,
        settings=settings,
        **{"participation": 1.0, "rounds": 2, "epochs": 2, "batch_size": 8, **options},
    )


def test_batches_of_a_pass_and_what_is_visited_in_them() -> None:
    samples = np.array([9, 8, 17, 2, 1, 23])
    expected = {1: [2, 1, 3, 1, 1, 3], 2: [1, 1, 2, 1, 1, 3], 8: [1, 1, 2, 1, 1, 2]}
    for smallest, batches in expected.items():
        known = population(smallest=smallest)
        assert known.batches(samples).tolist() == batches
        assert known.local_steps(samples).tolist() == [2 * each for each in batches]


@pytest.mark.parametrize("smallest", [1, 2])
@pytest.mark.parametrize("options", [{}, {"steps": 3}])
def test_clients_visit_the_batches_of_their_own_permutations(smallest: int, options: dict[str, int]) -> None:
    known, samples, ids = (
        population(smallest=smallest, **options),
        np.array([23, 17, 9, 8, 2]),
        np.array([7, 0, 4, 2, 9]),
    )
    store = SampleStore(torch.zeros(30), torch.zeros(30), torch.zeros(30), np.zeros(30, np.int64))
    clients = Clients(ids, samples, samples[:, None], known.local_steps(samples))
    shards = [Shard(store, np.arange(n)) for n in samples]
    positions, sizes = visits(Uniform(), shards, clients, known, ClientGenerators(3, Purpose.BATCHES, 1))
    visited = iter(np.split(positions, np.cumsum(sizes[sizes > 0])[:-1]))
    for client, n, each, steps in zip(ids, samples, known.batches(samples), clients.steps, strict=True):
        rng = generator(3, Purpose.BATCHES, 1, int(client))
        passes = [rng.permutation(n) for _ in range(3)]
        for batch in [order[8 * i : 8 * i + 8] for order in passes for i in range(each)][:steps]:
            np.testing.assert_array_equal(next(visited), batch)
    assert next(visited, None) is None


def test_a_mean_that_is_no_whole_number_has_the_batches_that_it_always_had() -> None:
    assert Population(4, 2, 8.4, np.ones(2) / 2, 1, 2, 8).reference_steps == 4


@pytest.mark.parametrize(
    ("module", "shape", "fails"),
    [
        (batch_norm(), (4,), True),
        (batch_norm(track=False), (4,), True),
        (nn.Sequential(nn.Linear(4, 2), nn.LayerNorm(2)), (4,), False),
        (nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2)), (1, 2, 2), False),
    ],
)
def test_only_batch_norm_over_one_value_fails_on_one_sample(
    module: nn.Module, shape: tuple[int, ...], fails: bool
) -> None:
    before = {name: value.clone() for name, value in module.state_dict().items()}
    network, sample = Network(module), torch.randn(2, *shape)
    assert fails_on_one_sample(network, sample) == fails
    assert [smallest_batch(how, 8, network, sample) for how in ("auto", True, False)] == [1 + fails, 8, 1]
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("method", ["fedcm", "mime"])
def test_every_backend_leaves_the_same_batches_out(method: str) -> None:
    module = batch_norm()
    expected = trained(module, method=method, backend="sequential").model.state_dict()
    for name, value in trained(module, method=method, backend="parallel").model.state_dict().items():
        if value.is_floating_point():  # BatchNorm counts its batches in every process for itself
            torch.testing.assert_close(value, expected[name], msg=name)
    assert not torch.equal(expected["0.weight"], module.state_dict()["0.weight"])


def test_batch_norm_is_not_stacked_even_without_running_statistics() -> None:
    module = batch_norm(track=False)
    assert trained(module, backend="auto", settings={"run.workers": 1}).summary.backend == "sequential"
    with pytest.raises(ValueError, match=r"run\.backend = 'vectorized'"):
        trained(module, backend="vectorized")


def test_a_model_without_batch_norm_trains_on_the_last_sample_unless_told_otherwise() -> None:
    module = nn.Linear(4, 2)
    found = {how: trained(module, settings={"local.drop_last": how}).model.weight for how in ("auto", False, True)}
    assert torch.equal(found["auto"], found[False])
    assert not torch.equal(found["auto"], found[True])


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ((9, 1, 8, 1), {}, r"clients 1, 3 would have .*at least two samples"),
        (SIZES, {"settings": {"local.drop_last": False}}, r"clients 0, 2 would have .*local\.drop_last=auto"),
        ((8, 9), {"settings": {"local.drop_last": False}}, r"client 1 would have"),
        (SIZES, {"batch_size": 1}, r"local\.batch_size = 1.*larger batch size"),
    ],
)
def test_clients_that_cannot_train_are_named_before_the_first_round(
    sizes: tuple[int, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        trained(batch_norm(), sizes, **options)


def test_a_pass_over_all_data_never_ends_with_one_sample() -> None:
    trained(batch_norm(), (257, 8), method="mime", backend="sequential", rounds=1, batch_size=64)
