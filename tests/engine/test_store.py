"""The clients' own state: cheap where there is none, shared with workers, on disk where it is large."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fedwcm.engine import store as module
from fedwcm.engine.store import ClientStore


def test_rows_are_kept_apart_and_start_at_zero() -> None:
    store = ClientStore(4, {"c": torch.ones(1, 3)})
    store.write(np.array([2, 0]), {"c": torch.tensor([[1.0, 2, 3], [4, 5, 6]])})
    rows = store.read(np.array([0, 1, 2, 3]), torch.device("cpu"))["c"]
    assert rows.tolist() == [[4, 5, 6], [0, 0, 0], [1, 2, 3], [0, 0, 0]]
    assert store.visited_clients().tolist() == [0, 2]
    assert store.has(np.array([0, 1, 2])).tolist() == [True, False, True]


def test_what_is_read_is_a_copy() -> None:
    store = ClientStore(2, {"c": torch.zeros(1, 2)})
    store.write(np.array([0]), {"c": torch.ones(1, 2)})
    store.read(np.array([0]), torch.device("cpu"))["c"].zero_()
    assert store.read(np.array([0]), torch.device("cpu"))["c"].tolist() == [[1, 1]]


def test_without_state_there_is_nothing_to_keep() -> None:
    store = ClientStore(10**6, {})
    assert not store.keeps_anything
    store.write(np.array([5]), {})
    assert store.visited_clients().tolist() == []


def test_a_large_store_takes_memory_only_for_those_that_took_part() -> None:
    before = _anonymous_memory()
    store = ClientStore(10**6, {"c": torch.zeros(1, 1000)})
    store.write(np.array([0, 999_999]), {"c": torch.ones(2, 1000)})
    assert _anonymous_memory() - before < 50e6
    assert store.read(np.array([999_999]), torch.device("cpu"))["c"].sum() == 1000


def test_above_a_limit_rows_live_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IN_MEMORY", 1000)
    store = ClientStore(100, {"c": torch.zeros(1, 100), "n": torch.zeros(1, dtype=torch.int64)})
    store.write(np.array([7]), {"c": torch.full((1, 100), 2.0), "n": torch.tensor([3])})
    rows = store.read(np.array([7, 8]), torch.device("cpu"))
    assert rows["c"].sum() == 200
    assert rows["n"].tolist() == [3, 0]


@pytest.mark.slow
def test_two_keys_of_resnet18_for_a_hundred_clients_fit_in_little_memory() -> None:
    size = 11_181_642
    template = {"h": torch.zeros(1, size), "mu": torch.zeros(1, size)}
    before = _anonymous_memory()
    store = ClientStore(100, template)
    for client in range(100):
        store.write(np.array([client]), {key: torch.full((1, size), float(client)) for key in template})
    assert _anonymous_memory() - before < 1e9
    assert bool((store.read(np.array([41]), torch.device("cpu"))["mu"] == 41).all())


def _anonymous_memory() -> float:
    """Memory of this process that only it can give back, unlike pages of files."""
    if not os.path.exists("/proc/self/status"):
        pytest.skip("needs /proc")
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return 1024.0 * (int(fields["RssAnon"].split()[0]) + int(fields["RssShmem"].split()[0]))


# --- rounds ------------------------------------------------------------------------------------------

CPU = torch.device("cpu")


def staged(store: ClientStore, ids: list[int], value: float) -> None:
    """What a round writes, before it counts."""
    store.reserve(np.array(ids))
    store.stage(np.array(ids), {"c": torch.full((len(ids), 2), value)})


def kept(store: ClientStore) -> list[float]:
    return store.read(np.arange(4), CPU)["c"][:, 0].tolist()


def test_a_round_takes_effect_when_it_is_committed_and_for_those_that_answered() -> None:
    store = ClientStore(4, {"c": torch.zeros(1, 2)})
    staged(store, [0, 1], 1.0)
    assert kept(store) == [0, 0, 0, 0]
    assert store.visited_clients().tolist() == []
    store.commit(1, np.array([0]))
    assert (kept(store), store.visited_clients().tolist(), store.round) == ([1, 0, 0, 0], [0], 1)
    staged(store, [0, 2], 2.0)
    staged(store, [2, 3], 3.0)  # the round begins again, with others
    store.commit(2, np.array([2, 3]))
    assert kept(store) == [1, 0, 3, 3]


def test_the_last_round_can_be_taken_back() -> None:
    store = ClientStore(4, {"c": torch.zeros(1, 2)})
    staged(store, [0, 1], 1.0)
    store.commit(1, np.array([0, 1]))
    staged(store, [1, 2], 2.0)
    store.commit(2, np.array([1, 2]))
    store.rollback(2)
    assert (kept(store), store.round) == ([1, 2, 2, 0], 2)
    store.rollback(1)
    assert (kept(store), store.visited_clients().tolist(), store.round) == ([1, 1, 0, 0], [0, 1], 1)
    staged(store, [1, 3], 4.0)
    store.commit(2, np.array([1, 3]))
    assert kept(store) == [1, 4, 0, 4]


def test_rows_are_used_again_and_never_by_two() -> None:
    rng, store = np.random.default_rng(0), ClientStore(4, {"c": torch.zeros(1, 2)})
    expected = np.zeros(4)
    for round_ in range(1, 200):
        ids = np.sort(rng.permutation(4)[: rng.integers(1, 5)])
        store.reserve(ids)
        store.stage(ids, {"c": torch.full((len(ids), 2), float(round_))})
        answered = ids[rng.random(len(ids)) < 0.8]
        before = expected.copy()
        expected[answered] = round_
        store.commit(round_, answered)
        assert kept(store) == expected.tolist()
        if rng.random() < 0.3:
            store.rollback(round_ - 1)
            expected = before
            assert kept(store) == expected.tolist()
            store.round = round_
    assert store._used <= 2 * 4 + 1


def test_a_store_accepts_the_state_of_its_clients_and_nothing_else() -> None:
    store = ClientStore(4, {"c": torch.zeros(1, 3)})
    both, rows = np.array([0, 3]), torch.zeros(2, 3)
    assert store.accepts(both, {"c": rows})
    for ids in (np.array([-1, 0]), np.array([0, 4]), np.array([[0, 3]]), np.array([0.0, 3.0])):
        assert not store.knows(ids)
        assert not store.accepts(ids, {"c": rows})
    assert not store.accepts(both, {"d": rows})
    assert not store.accepts(both, {"c": rows, "d": rows})
    assert not store.accepts(both, {"c": torch.zeros(2, 4)})
    assert not store.accepts(both, {"c": torch.zeros(1, 3)})


def test_a_round_that_was_taken_back_leaves_nothing_to_take_back() -> None:
    store = ClientStore(3, {"c": torch.zeros(1, 1)})
    ids = np.array([1, 2])
    for round_ in (1, 2):
        store.reserve(ids)
        store.stage(ids, {"c": torch.full((2, 1), float(round_))})
        store.commit(round_, ids)
    store.rollback(1)
    store.rollback(1)
    assert store.round == 1
    assert store.read(ids, torch.device("cpu"))["c"].tolist() == [[1.0], [1.0]]
    store.rollback(0)
    assert store.read(ids, torch.device("cpu"))["c"].tolist() == [[1.0], [1.0]], "only the last one can be"
