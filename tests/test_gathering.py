"""What clients add up before round 1: the same sums in any order and any mode."""

import numpy as np
import pytest

from fedwcm.balance import local_deviations
from fedwcm.config.build import build
from fedwcm.config.class_distribution import gather_distribution
from fedwcm.config.schema import from_settings
from fedwcm.core.gathering import FARTHEST, UNIT, addends, read_sum
from fedwcm.core.types import Ints
from fedwcm.privacy.options import PrivacyOptions

COUNTS: Ints = np.array([[17, 3, 1], [9, 8, 4], [21, 1, 0], [6, 2, 3]])
TARGET = np.array([0.5, 0.25, 0.25])


@pytest.mark.parametrize("target", [None, TARGET], ids=["uniform", "given"])
def test_the_sum_is_the_class_totals_and_the_mean_distance(target: "np.ndarray | None") -> None:
    totals, deviation = read_sum(addends(COUNTS, target).sum(axis=0), len(COUNTS))
    assert totals.tolist() == COUNTS.sum(axis=0).tolist()
    assert deviation == pytest.approx(local_deviations(COUNTS, target).mean(), abs=UNIT)


def test_clients_may_be_added_in_any_order_and_one_by_one() -> None:
    whole = addends(COUNTS, None).sum(axis=0)
    singly = sum(addends(row[None], None)[0] for row in COUNTS[::-1])
    assert np.array_equal(whole, singly)


def test_encryption_changes_no_digit_of_what_is_gathered() -> None:
    pytest.importorskip("tenseal", reason="needs the extra fedwcm[he]")
    plain, sealed = (gather_distribution(COUNTS, TARGET, PrivacyOptions(mode=mode)) for mode in ("none", "he"))
    assert plain.totals.tolist() == sealed.totals.tolist()
    assert plain.deviation == sealed.deviation
    assert plain.encryption is None
    assert sealed.encryption is not None
    assert sealed.encryption["clients"] == len(COUNTS)


def test_a_client_that_sends_an_impossible_distance_moves_the_mean_no_farther_than_any_can_be() -> None:
    rows = addends(COUNTS, None)
    rows[0, -1] = 2**30 - 1
    assert read_sum(rows.sum(axis=0), len(rows))[1] == FARTHEST


def test_the_model_s_file_has_the_counts_that_were_gathered_not_those_that_noise_hides() -> None:
    asked = {"partition.clients": 5, "privacy.epsilon": 0.1, "run.backend": "sequential"}
    experiment = build(from_settings(asked))
    held = np.array(experiment.facts.class_counts)
    assert not np.array_equal(held, experiment.train_counts)
    np.testing.assert_allclose(experiment.rounds.trainer.population.prior, held / held.sum())
