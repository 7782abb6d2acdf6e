"""Divisions that a seed always gave, and the margins that they meet."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwcm.data.partition.equal import _fit_margins

from .test_partition import RANDOM, SEED, assert_each_index_once, labels_with, made, split, table

DIVIDED = {
    "equal": "aa3f27f59948",
    "equal-ipf": "22a478ab0b05",
    "creff": "dd919e5d7440",
    "balancefl": "7e6bf0caccba",
    "pathological": "de8f52a664ff",
    "iid": "a0f38a06fbe5",
    "fedgrab": "00fba6e89953",
    "extended-dirichlet": "06f5cdaeebbe",
}
"""Digests of the counts of 24 clients: a seed divides a data set alike in every version."""


@pytest.mark.parametrize("name", RANDOM)
def test_a_seed_divides_as_it_always_did(name: str) -> None:
    labels = labels_with(np.array([160, 90, 60, 30, 20]))
    counts = [table(made(name, 24, beta), labels, seed) for beta, seed in ((0.3, 0), (1.0, 1), (2.0, 2))]
    assert hashlib.sha256(np.stack(counts).tobytes()).hexdigest()[:12] == DIVIDED[name]


def test_a_division_in_small_blocks_meets_both_margins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedwcm.data.partition.protocol._BLOCK", 64)
    labels = labels_with([160, 90, 60, 30, 20])
    assert_each_index_once(split(made("equal", 24, 0.3), labels), len(labels))


@given(seed=SEED, beta=st.sampled_from([0.01, 0.1, 1.0]))
@settings(max_examples=40, deadline=None)
def test_fitted_tables_exceed_no_client_and_no_class(seed: int, beta: float) -> None:
    rng = np.random.default_rng(seed)
    prior = rng.dirichlet(np.full(4, beta), 6) + 1e-30
    sizes, stock = np.full(6, 10), np.array([33, 15, 9, 3])
    fitted = _fit_margins(prior, sizes, stock)
    assert (fitted.sum(axis=1) <= sizes * (1 + 1e-12)).all()
    assert (fitted.sum(axis=0) <= stock * (1 + 1e-12)).all()


def test_a_class_without_samples_changes_no_block_of_balancefl() -> None:
    gap, none = labels_with([90, 0, 30, 20]), labels_with([90, 30, 20])
    with_gap, without = (table(made("balancefl", 6, 1.0), labels) for labels in (gap, none))
    assert np.array_equal(with_gap[:, [0, 2, 3]], without)
