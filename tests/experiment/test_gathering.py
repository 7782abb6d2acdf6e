"""What clients add up before round 1: the same sums in any order and any mode."""

import numpy as np
import pytest

from fedwcm.balance import local_deviations
from fedwcm.config.settings import from_settings
from fedwcm.core.disclosure import FARTHEST, SAMPLES_PER_LEVEL, UNIT, contributions, decode_total
from fedwcm.core.types import Ints
from fedwcm.experiment.build import build
from fedwcm.experiment.class_distribution import gather_distribution
from fedwcm.privacy.options import PrivacyOptions

COUNTS: Ints = np.array([[17, 3, 1], [9, 8, 4], [21, 1, 0], [6, 2, 3]])
TARGET = np.array([0.5, 0.25, 0.25])


@pytest.mark.parametrize("target", [None, TARGET], ids=["uniform", "given"])
def test_the_sum_is_the_class_totals_and_the_mean_distance(target: "np.ndarray | None") -> None:
    totals, deviation = decode_total(contributions(COUNTS, target, None).sum(axis=0), len(COUNTS))
    assert totals.tolist() == COUNTS.sum(axis=0).tolist()
    assert deviation == pytest.approx(local_deviations(COUNTS, target).mean(), abs=UNIT)


def test_a_target_that_does_not_fit_the_classes_is_refused_by_the_name_of_its_option() -> None:
    with pytest.raises(ValueError, match=r"run\.target must have one entry per class: 2 for 3 classes"):
        contributions(COUNTS, np.array([0.5, 0.5]), None)


def test_clients_may_be_added_in_any_order_and_one_by_one() -> None:
    whole = contributions(COUNTS, None, 8).sum(axis=0)
    singly = sum(contributions(row[None], None, 8)[0] for row in COUNTS[::-1])
    assert np.array_equal(whole, singly)


@pytest.mark.parametrize("target", [None, TARGET, np.array([0.0, 0.5, 0.5])], ids=["uniform", "given", "zero"])
def test_distances_in_levels_differ_by_half_a_level_at_most(target: "np.ndarray | None") -> None:
    """The farthest client has a single class, that of the smallest share."""
    counts = np.vstack([COUNTS, 40 * np.eye(3, dtype=np.int64)])
    exact, coarse = (contributions(counts, target, levels)[:, -1] * UNIT for levels in (None, 8))
    farthest = 2 * (1 - (1 / 3 if target is None else target.min()))
    half_a_level = farthest / np.clip(counts.sum(axis=1) // SAMPLES_PER_LEVEL, 1, 8) / 2
    assert exact.max() == pytest.approx(farthest, abs=UNIT)
    assert (np.abs(exact - coarse) <= half_a_level + UNIT).all()
    assert len(np.unique(contributions(counts, target, 1)[:, -1])) == 1


def test_encryption_changes_no_digit_of_what_is_gathered_exactly() -> None:
    pytest.importorskip("tenseal", reason="needs the extra fedwcm[he]")
    options = PrivacyOptions(), PrivacyOptions(mode="he", score_levels=0)
    plain, sealed = (gather_distribution(COUNTS, TARGET, privacy) for privacy in options)
    assert plain.totals.tolist() == sealed.totals.tolist()
    assert plain.deviation == sealed.deviation
    assert plain.encryption is None
    assert sealed.encryption is not None
    assert sealed.encryption["clients"] == len(COUNTS)


def test_encryption_sums_distances_in_levels() -> None:
    pytest.importorskip("tenseal", reason="needs the extra fedwcm[he]")
    coarse = decode_total(contributions(COUNTS, TARGET, 4).sum(axis=0), len(COUNTS))[1]
    sealed = gather_distribution(COUNTS, TARGET, PrivacyOptions(mode="he", score_levels=4))
    assert sealed.deviation == coarse != gather_distribution(COUNTS, TARGET, PrivacyOptions()).deviation


def test_an_impossible_distance_moves_the_mean_no_farther_than_a_possible_one() -> None:
    rows = contributions(COUNTS, None, None)
    rows[0, -1] = 2**30 - 1
    assert decode_total(rows.sum(axis=0), len(rows))[1] == FARTHEST


def test_the_model_s_file_has_the_counts_that_were_gathered_with_their_noise() -> None:
    asked = {"partition.clients": 5, "privacy.epsilon": 0.1, "run.backend": "sequential"}
    experiment = build(from_settings(asked))
    held = np.array(experiment.facts.class_counts)
    assert not np.array_equal(held, experiment.train_counts)
    np.testing.assert_allclose(experiment.rounds.trainer.population.prior, held / held.sum())
