"""Laws of the partitions: who gets what, exactly, and how far the mixes are from the whole."""

import math
import time
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedwcm.data.longtail import class_counts
from fedwcm.data.partition import (
    IID,
    PARTITIONS,
    BalanceFL,
    CReFF,
    Equal,
    EqualIPF,
    ExtendedDirichlet,
    FedGraB,
    Natural,
    Partition,
    Pathological,
    counts_of,
    describe,
)
from fedwcm.data.partition.protocol import draw_without_reuse
from fedwcm.data.partition.published import _take_from_largest, _try_division

Labels = NDArray[np.int64]

CLASS_TOTALS = st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(any)
BETA = st.sampled_from([1e-9, 0.01, 0.1, 0.6, 10, 1e9])
SEED = st.integers(0, 2**32)

EQUAL_SIZED = ("equal", "equal-ipf", "creff", "balancefl", "pathological", "iid")
RANDOM = (*EQUAL_SIZED, "fedgrab", "extended-dirichlet")


def made(name: str, clients: int, beta: float) -> Partition:
    """The partition of this name; BalanceFL's blocks are as skewed as others' mixes."""
    options = {"clients": clients, "beta": beta, "tau_ratio": beta}
    kind = PARTITIONS[name]
    partition: Partition = kind(**{f.name: options[f.name] for f in fields(kind) if f.name in options})
    return partition


def labels_with(totals: list[int] | NDArray[np.int64], seed: int = 0) -> Labels:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(totals)), totals))


def cifar10(imbalance: float) -> Labels:
    return labels_with(class_counts(np.full(10, 5000), imbalance))


def split(partition: Partition, labels: Labels, seed: int = 0) -> list[NDArray[np.int64]]:
    return partition(labels, np.random.default_rng(seed))


def table(partition: Partition, labels: Labels, seed: int = 0) -> NDArray[np.int64]:
    return counts_of(split(partition, labels, seed), labels, int(labels.max()) + 1)


def mean_distance(partition: Partition, labels: Labels, seeds: int) -> float:
    return float(np.mean([describe(table(partition, labels, seed)).distance_mean for seed in range(seeds)]))


def assert_each_index_once(parts: list[NDArray[np.int64]], samples: int) -> None:
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(samples))
    for part in parts:
        assert part.dtype == np.int64
        assert part.size > 0
        assert (np.diff(part) > 0).all()


# --- what holds for all of them


@pytest.mark.parametrize("name", RANDOM)
@settings(max_examples=25, deadline=None)
@given(data=st.data(), totals=CLASS_TOTALS, beta=BETA, seed=SEED)
def test_every_sample_goes_to_exactly_one_client(
    name: str, data: st.DataObject, totals: list[int], beta: float, seed: int
) -> None:
    clients = data.draw(st.integers(1, sum(totals)))
    parts = split(made(name, clients, beta), labels_with(totals), seed)
    assert len(parts) == clients
    assert_each_index_once(parts, sum(totals))
    if name in EQUAL_SIZED:
        sizes = [part.size for part in parts]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("name", RANDOM)
def test_same_seed_same_split_and_another_seed_another(name: str) -> None:
    labels, partition = cifar10(0.01), made(name, 37, 0.5)
    first, again, other = (split(partition, labels, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("name", EQUAL_SIZED)
def test_chance_decides_who_gets_the_extra_sample(name: str) -> None:
    labels, partition = labels_with([60, 30, 13]), made(name, 20, 0.5)
    everyone = np.array([[part.size for part in split(partition, labels, seed)] for seed in range(80)])
    assert (everyone.max(axis=0) == 6).all()


@pytest.mark.parametrize("name", RANDOM)
def test_no_client_has_a_place_in_the_queue(name: str) -> None:
    """Clients of low and of high number have the same law."""
    labels = labels_with(class_counts(np.full(10, 200), 0.1))
    halves = np.array([table(made(name, 20, 1.0), labels, seed)[:10].sum(axis=0) for seed in range(100)])
    np.testing.assert_allclose(halves.mean(axis=0) / np.bincount(labels), 0.5, atol=0.1)


@pytest.mark.parametrize("name", RANDOM)
def test_which_samples_of_a_class_a_client_gets_is_random(name: str) -> None:
    labels = np.zeros(1000, dtype=np.int64)
    first = split(made(name, 2, 1.0), labels)[0]
    assert np.diff(first).max() > 1
    assert 300 < np.median(first) < 700


@pytest.mark.parametrize("name", RANDOM)
def test_more_clients_than_samples_names_both_numbers(name: str) -> None:
    with pytest.raises(ValueError, match=r"clients = 11 .* 10 samples"):
        split(made(name, 11, 0.5), np.zeros(10, dtype=np.int64))


# --- equal and equal-ipf


@pytest.mark.parametrize(
    ("beta", "expected"), [(0.1, (0.67, 0.65, 0.56, 0.55, 0.46)), (0.6, (0.42, 0.41, 0.36, 0.34, 0.32))]
)
def test_equal_is_as_far_from_the_whole_as_drawing_without_reuse_makes_it(
    beta: float, expected: tuple[float, ...]
) -> None:
    for imbalance, distance in zip((1, 0.5, 0.1, 0.05, 0.01), expected, strict=True):
        ours = mean_distance(Equal(clients=100, beta=beta), cifar10(imbalance), seeds=15)
        assert ours == pytest.approx(distance, abs=0.03)


def test_fitted_priors_are_further_from_the_whole() -> None:
    labels = cifar10(0.1)
    fitted = mean_distance(EqualIPF(clients=100, beta=0.1), labels, seeds=5)
    assert fitted == pytest.approx(0.69, abs=0.03)
    assert fitted > mean_distance(Equal(clients=100, beta=0.1), labels, seeds=5) + 0.08


@pytest.mark.parametrize("name", ["equal", "equal-ipf", "creff", "fedgrab"])
def test_smaller_beta_means_further_from_the_whole(name: str) -> None:
    labels = cifar10(0.1)
    distances = [mean_distance(made(name, 50, beta), labels, 2) for beta in (0.05, 0.3, 2, 1000)]
    assert np.all(np.diff(distances) < -0.05)


@pytest.mark.parametrize("name", ["equal", "equal-ipf"])
def test_extreme_priors_with_an_extreme_tail_still_meet_both_margins(name: str) -> None:
    labels = labels_with([100_000, 1000, 10, 1, 0, 1])
    for beta in (1e-9, 0.001, 0.01):
        counts = table(made(name, 1000, beta), labels)
        np.testing.assert_array_equal(counts.sum(axis=0), np.bincount(labels))
        assert set(counts.sum(axis=1)) <= {101, 102}


# --- fedgrab


@settings(max_examples=40, deadline=None)
@given(data=st.data(), totals=CLASS_TOTALS, beta=BETA, seed=SEED)
def test_fedgrab_gives_everyone_the_minimum(
    data: st.DataObject, totals: list[int], beta: float, seed: int
) -> None:
    clients = data.draw(st.integers(1, sum(totals)))
    min_samples = data.draw(st.integers(1, sum(totals) // clients))
    labels = labels_with(totals)
    parts = split(FedGraB(clients=clients, beta=beta, min_samples=min_samples), labels, seed)
    assert_each_index_once(parts, labels.size)
    assert min(part.size for part in parts) >= min_samples


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any), st.data())
def test_samples_move_from_whoever_is_the_largest(sizes: list[int], data: st.DataObject) -> None:
    amount = data.draw(st.integers(0, sum(sizes)))
    given_away = _take_from_largest(np.array(sizes), amount, np.random.default_rng(0))
    one_by_one = list(sizes)
    for _ in range(amount):
        one_by_one[one_by_one.index(max(one_by_one))] -= 1
    assert given_away.min() >= 0
    assert sorted(np.array(sizes) - given_away) == sorted(one_by_one)


def test_fedgrab_sizes_are_very_unequal() -> None:
    statistics = describe(table(FedGraB(clients=100, beta=0.1), cifar10(0.1)))
    assert statistics.size_min == 1
    assert statistics.size_max > 5 * statistics.size_median


def test_fedgrab_without_enough_samples_for_the_minimum_says_so() -> None:
    with pytest.raises(ValueError, match=r"min_samples = 3 .* clients = 5 would need 15 samples and there are 14"):
        split(FedGraB(clients=5, beta=1, min_samples=3), np.zeros(14, dtype=np.int64))


# --- creff, balancefl, pathological, iid, natural


def test_creff_gives_each_group_of_ten_its_share_of_every_class() -> None:
    labels = cifar10(0.1)
    counts = table(CReFF(clients=50, beta=0.2), labels).reshape(5, 10, 10).sum(axis=1)
    np.testing.assert_allclose(counts, np.tile(np.bincount(labels) / 5, (5, 1)), rtol=0.2)


def test_creff_of_one_group_keeps_few_classes_a_client_when_beta_is_small() -> None:
    statistics = describe(table(CReFF(clients=10, beta=1e-3), labels_with([1000] * 10)))
    assert statistics.classes_per_client_max <= 3


def test_creff_gives_nothing_more_to_members_at_the_average_and_nothing_to_strangers() -> None:
    stock = np.random.default_rng(0).integers(0, 50, (300, 7)) + 1
    is_member = np.arange(10) < np.where(np.arange(300) % 3, 10, 4)[:, None]
    counts = _try_division(stock, is_member, 0.5, np.random.default_rng(1))
    np.testing.assert_array_equal(counts.sum(axis=2), stock)
    assert not counts.transpose(0, 2, 1)[~is_member].any()
    average = stock.sum(axis=1) / is_member.sum(axis=1)
    before = np.cumsum(counts, axis=1) - counts
    assert (before < average[:, None, None])[counts > 0].all()


def test_balancefl_keeps_the_rarest_class_together() -> None:
    labels = cifar10(0.01)
    counts = table(BalanceFL(clients=10, tau_ratio=1), labels)
    assert np.count_nonzero(counts[:, 9]) == 1


def test_balancefl_with_blocks_of_one_deals_every_class_evenly() -> None:
    labels = labels_with([500, 200, 50])
    counts = table(BalanceFL(clients=10, tau_ratio=0.001), labels)
    assert np.abs(counts - np.bincount(labels) / 10).max() <= 2


def test_balancefl_larger_blocks_mean_fewer_classes() -> None:
    medians = [
        describe(table(BalanceFL(clients=10, tau_ratio=tau), cifar10(0.01))).classes_per_client_median
        for tau in (0.1, 2, 100)
    ]
    assert medians[0] > medians[1] > medians[2]


@settings(max_examples=120, deadline=None)
@given(data=st.data(), totals=CLASS_TOTALS, wanted=st.integers(1, 5), seed=SEED)
def test_pathological_never_exceeds_its_bound(
    data: st.DataObject, totals: list[int], wanted: int, seed: int
) -> None:
    clients = data.draw(st.integers(1, min(sum(totals), 12)))
    counts = table(Pathological(clients=clients, classes_per_client=wanted), labels_with(totals), seed)
    held = np.count_nonzero(counts, axis=1)
    classes = np.count_nonzero(totals)
    assert held.max() <= max(wanted, math.ceil((classes - 1) / clients) + 1)
    if wanted == 1 and clients >= classes - 1:
        assert np.count_nonzero(held == 2) <= classes - 1


@settings(max_examples=60, deadline=None)
@given(data=st.data(), totals=CLASS_TOTALS, width=st.integers(1, 5), beta=BETA, seed=SEED)
def test_extended_dirichlet_clients_have_no_more_classes_than_they_are_given(
    data: st.DataObject, totals: list[int], width: int, beta: float, seed: int
) -> None:
    clients = data.draw(st.integers(1, min(sum(totals), 12)))
    partition = ExtendedDirichlet(clients=clients, beta=beta, classes_per_client=width)
    counts = table(partition, labels_with(totals), seed)
    assert np.count_nonzero(counts, axis=1).max() <= max(width, math.ceil(np.count_nonzero(totals) / clients))


def test_extended_dirichlet_sets_classes_and_sizes_apart() -> None:
    labels = cifar10(0.1)
    even, skewed = (
        table(ExtendedDirichlet(clients=50, beta=beta, classes_per_client=3), labels) for beta in (1e9, 0.05)
    )
    np.testing.assert_array_equal(np.count_nonzero(even, axis=1), 3)
    np.testing.assert_array_equal(np.count_nonzero(even, axis=0), 15)  # 50 clients of 3 classes, 10 classes
    shares = even / np.bincount(labels)
    np.testing.assert_allclose(shares[shares > 0], 1 / 15, atol=0.005)
    assert (skewed.max(axis=0) / np.bincount(labels)).mean() > 0.5
    assert len({tuple(row > 0) for row in even}) > 20


def test_pathological_one_class_each_where_the_totals_permit() -> None:
    counts = table(Pathological(clients=100, classes_per_client=1), labels_with([500] * 10))
    assert np.count_nonzero(counts, axis=1).max() == 1


@pytest.mark.parametrize("wanted", [2, 5])
def test_pathological_clients_mostly_hold_as_many_classes_as_allowed(wanted: int) -> None:
    counts = table(Pathological(clients=200, classes_per_client=wanted), cifar10(1))
    held = np.count_nonzero(counts, axis=1)
    assert held.max() == wanted
    assert np.mean(held) > 0.75 * wanted
    assert len({tuple(row > 0) for row in counts}) > 40


def test_iid_mixes_are_those_of_the_whole_and_not_in_order() -> None:
    labels = np.sort(cifar10(0.1))
    parts = split(IID(clients=20), labels)
    assert describe(counts_of(parts, labels, 10)).distance_max < 0.1
    assert all(np.diff(part).max() > 1 for part in parts)


@given(st.lists(st.integers(-5, 1000), min_size=1, max_size=50))
def test_natural_follows_the_ids_in_rising_order(ids: list[int]) -> None:
    labels = np.zeros(len(ids), dtype=np.int64)
    partition = Natural(client_ids=np.array(ids))
    parts = split(partition, labels)
    assert len(parts) == partition.clients
    assert_each_index_once(parts, len(ids))
    for client, part in zip(sorted(set(ids)), parts, strict=True):
        assert {ids[i] for i in part} == {client}


def test_natural_refuses_another_number_of_labels() -> None:
    with pytest.raises(ValueError, match=r"client_ids .* 4 labels, got 3"):
        split(Natural(client_ids=np.array([0, 1, 1])), np.zeros(4, dtype=np.int64))


def test_natural_is_not_changed_by_its_source() -> None:
    ids = np.array([0, 0, 1])
    partition = Natural(client_ids=ids)
    ids[:] = 7
    assert partition.clients == 2


# --- size


def check_large_split(name: str, clients: int, samples: int, beta: float) -> float:
    """Split many long-tailed samples and return the processor seconds it took, whatever else the machine does."""
    n_max = int(samples * 0.41)
    labels = labels_with(class_counts(np.full(10, n_max), 0.01))
    ids = np.random.default_rng(0).permutation(np.arange(labels.size) % clients)
    partition = Natural(client_ids=ids) if name == "natural" else made(name, clients, beta)
    start = time.process_time()
    parts = split(partition, labels)
    seconds = time.process_time() - start
    assert len(parts) == clients
    counts = counts_of(parts, labels, 10)
    np.testing.assert_array_equal(counts.sum(axis=0), np.bincount(labels))
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(labels.size))
    assert counts.sum(axis=1).min() >= 1
    return seconds


@pytest.mark.parametrize("name", PARTITIONS)
def test_ten_thousand_clients_take_seconds(name: str) -> None:
    assert check_large_split(name, clients=10_000, samples=100_000, beta=0.1) < 10


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.01, 0.1, 0.6])
@pytest.mark.parametrize("name", PARTITIONS)
def test_hundred_thousand_clients_take_under_half_a_minute(name: str, beta: float) -> None:
    assert check_large_split(name, clients=100_000, samples=1_000_000, beta=beta) < 30


def test_the_last_sample_of_a_class_goes_to_the_client_that_prefers_it() -> None:
    """A class with one sample left is still there to be drawn."""
    prior = np.where(np.eye(5, dtype=bool), 0.0, -200.0)
    one = np.ones(5, dtype=np.int64)
    for seed in range(5):
        drawn = draw_without_reuse(prior, one, one, np.random.default_rng(seed))
        assert drawn.tolist() == np.eye(5, dtype=np.int64).tolist()
