"""Metrics: shot groups by hand, F1 and balanced accuracy against scikit-learn's."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.stats import binomtest
from sklearn.metrics import balanced_accuracy_score, f1_score, precision_recall_curve

from fedwcm.metrics.classification import (
    ShotRule,
    balanced_accuracy,
    class_precision,
    macro_f1,
    precision_at_recall,
    shot_groups,
    summarise,
    wilson_interval,
)

Ints = NDArray[np.int64]

CONFUSION = np.array([[5, 1, 0, 0], [2, 6, 2, 0], [0, 0, 0, 0], [1, 0, 0, 3]])  # class 2 has no test samples


def exponential(classes: int, imbalance: float, largest: int) -> Ints:
    return (largest * imbalance ** (np.arange(classes) / (classes - 1))).astype(np.int64)


def groups(counts: Ints) -> tuple[list[int], list[int], list[int]]:
    found = shot_groups(counts)
    assert list(found) == ["many", "medium", "few"]
    return found["many"].tolist(), found["medium"].tolist(), found["few"].tolist()


# --- shot groups -------------------------------------------------------------------------------------


@pytest.mark.parametrize("imbalance", [0.5, 0.1, 0.05, 0.01])
def test_ten_classes_of_an_exponential_tail_are_cut_in_3_3_and_4(imbalance: float) -> None:
    assert groups(exponential(10, imbalance, 5000)) == ([0, 1, 2], [3, 4, 5], [6, 7, 8, 9])


@pytest.mark.parametrize("imbalance", [0.5, 0.1, 0.01])
def test_two_hundred_classes_of_an_exponential_tail_are_cut_in_thirds(imbalance: float) -> None:
    sizes = [len(group) for group in groups(exponential(200, imbalance, 500))]
    assert sum(sizes) == 200
    assert all(abs(size - 200 / 3) < 3 for size in sizes)


def test_a_step_has_no_medium() -> None:
    assert groups(np.array([500] * 4 + [50] * 6)) == ([0, 1, 2, 3], [], [4, 5, 6, 7, 8, 9])


@pytest.mark.parametrize("rule", ["range", "share"])
def test_there_are_groups_only_if_the_largest_class_is_twice_the_smallest(rule: ShotRule) -> None:
    for even in ([37] * 7, [12], [16_062, 15_900, 15_668], [199, 100]):
        assert shot_groups(np.array(even), rule) == {}
        metrics = summarise(np.eye(len(even), dtype=np.int64), np.array(even), rule)
        assert (metrics.many, metrics.medium, metrics.few) == (None, None, None)
    assert shot_groups(np.array([200, 100]), rule)


def test_groups_by_share_keep_equal_classes_together() -> None:
    found = shot_groups(np.array([2, 60, 10, 10, 10, 3, 3, 2]), "share")
    assert {name: members.tolist() for name, members in found.items()} == {
        "many": [1, 2, 3, 4],  # 60 % of the samples are in a more frequent class
        "medium": [5, 6],  # 90 %
        "few": [0, 7],  # 96 %
    }
    limits = shot_groups(np.array([75, 20, 5]), "share")  # of the samples, 75 % and 95 % are in larger classes
    assert {name: members.tolist() for name, members in limits.items()} == {"many": [0], "medium": [1], "few": [2]}
    tail = shot_groups(exponential(10, 0.01, 5000), "share")
    assert [len(tail[name]) for name in ("many", "medium", "few")] == [3, 3, 4]


def test_a_class_without_training_samples_is_few_and_does_not_move_the_cuts() -> None:
    assert groups(np.array([1000, 100, 10, 1])) == ([0, 1], [2], [3])
    assert groups(np.array([1000, 100, 10, 1, 0])) == ([0, 1], [2], [3, 4])
    assert groups(np.array([30, 30, 0])) == ([0, 1], [], [2])
    assert groups(np.array([3, 0])) == ([0], [], [1])  # as if the rarest had one sample
    assert groups(np.array([1000, 500, 0])) == ([0], [], [1, 2])


@given(arrays(np.int64, st.integers(1, 30), elements=st.integers(0, 10_000)).filter(lambda c: bool(c.any())))
def test_every_class_is_in_one_group_and_groups_are_ordered_by_size(counts: Ints) -> None:
    if not shot_groups(counts):
        assert counts.max() < 2 * max(1, counts.min())
        return
    many, medium, few = groups(counts)
    assert sorted(many + medium + few) == list(range(len(counts)))
    assert counts.argmax() in many
    for above, below in ((many, medium), (medium, few), (many, few)):
        if above and below:
            assert counts[above].min() > counts[below].max()


# --- measures ----------------------------------------------------------------------------------------


def pairs(confusion: Ints) -> tuple[Ints, Ints]:
    """True and predicted labels that have this confusion matrix."""
    actual, predicted = np.indices(confusion.shape).reshape(2, -1)
    return np.repeat(actual, confusion.ravel()), np.repeat(predicted, confusion.ravel())


confusions = st.integers(2, 6).flatmap(lambda c: arrays(np.int64, (c, c), elements=st.integers(0, 9)))


@pytest.mark.filterwarnings("ignore::UserWarning")
@example(CONFUSION)
@example(np.array([[1, 0, 9], [2, 7, 0], [0, 0, 0]]))
@given(confusions.filter(lambda table: bool(table.any())))
def test_macro_f1_and_balanced_accuracy_are_scikit_learn_s(confusion: Ints) -> None:
    actual, predicted = pairs(confusion)
    expected = f1_score(actual, predicted, average="macro", zero_division=0)
    assert macro_f1(confusion) == pytest.approx(expected, rel=1e-12)
    assert balanced_accuracy(confusion) == pytest.approx(balanced_accuracy_score(actual, predicted), rel=1e-12)


def test_there_is_every_metric_and_none_where_there_is_nothing_to_measure() -> None:
    metrics = summarise(CONFUSION, np.array([1000, 900, 3, 1000]))
    assert metrics.test_accuracy == pytest.approx(14 / 20)
    assert metrics.balanced_accuracy == pytest.approx((5 / 6 + 0.6 + 0.75) / 3)
    assert metrics.many == pytest.approx((5 / 6 + 0.6 + 0.75) / 3)
    assert metrics.medium is None
    assert metrics.few is None
    assert metrics.per_class_accuracy == (pytest.approx(5 / 6), pytest.approx(0.6), None, 0.75)


def test_precision_and_the_intervals_of_the_recalls() -> None:
    np.testing.assert_allclose(class_precision(CONFUSION), [5 / 8, 6 / 7, 0.0, 1.0])
    assert np.isnan(class_precision(np.array([[1, 0], [1, 0]]))[1])
    pairs = np.array([(0, 3), (3, 3), (1, 40), (17, 29)])
    for interval, (hits, trials) in zip(wilson_interval(*pairs.T), pairs.tolist(), strict=True):
        expected = binomtest(hits, trials).proportion_ci(method="wilson")
        np.testing.assert_allclose(interval, [expected.low, expected.high], atol=1e-6)
    assert np.isnan(wilson_interval(np.array([0]), np.array([0]))).all()


def test_the_precision_at_a_recall_is_scikit_learn_s() -> None:
    rng = np.random.default_rng(0)
    members = rng.random(500) < 0.1
    scores = (rng.normal(size=500) + 2 * members).astype(np.float32)
    precision, recall, _ = precision_recall_curve(members, scores)
    for wanted in (0.5, 0.9, 1.0):
        expected = precision[np.flatnonzero(recall >= wanted)[-1]]
        assert precision_at_recall(scores, members, wanted) == pytest.approx(expected)
    assert precision_at_recall(scores, np.zeros(500, dtype=bool), 0.9) is None
