"""Accuracy overall, per class and per shot; balanced accuracy and macro F1 for test sets with a long tail."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedwcm.core.types import Floats, Ints

SHOTS = ("many", "medium", "few")
ShotRule = Literal["range", "share"]

SHOT_RATIO = 2.0
"""There are shot groups if the most frequent class has at least this many times the samples of the rarest."""

Z_95 = 1.959964
"""Standard errors on each side of a 95 % interval."""

MANY_SHARE, MEDIUM_SHARE = 0.75, 0.95
"""Shares of the training samples that end the groups by share."""


@dataclass(frozen=True)
class ClassificationMetrics:
    """All metrics of one evaluation; None where a class has no test samples or there is no such group."""

    test_accuracy: float
    balanced_accuracy: float
    macro_f1: float
    many: float | None
    medium: float | None
    few: float | None
    per_class_accuracy: tuple[float | None, ...]


def class_accuracy(confusion: Ints) -> Floats:
    """Return the accuracy of each class; NaN for a class without test samples."""
    return _ratio(np.diag(confusion), confusion.sum(axis=1))


def class_precision(confusion: Ints) -> Floats:
    """Return the share of the samples predicted as each class that are of it; NaN for a class never predicted."""
    return _ratio(np.diag(confusion), confusion.sum(axis=0))


def precision_at_recall(scores: NDArray[np.float32], members: NDArray[np.bool_], recall: float) -> float | None:
    """Return the precision of an alarm for a class, at the highest threshold that finds this share of its samples.

    Args:
        scores: the score of every sample for the class.
        members: whether it is of the class.
        recall: the share to find.
    """
    if not members.any():
        return None
    threshold = np.sort(scores[members])[::-1][int(np.ceil(recall * members.sum())) - 1]
    return float(members[scores >= threshold].mean())


def wilson_interval(hits: Ints, trials: Ints) -> Floats:
    """Return the 95 % interval of each share, `(n, 2)`; NaN without a trial.

    Wilson. Probable inference, the law of succession, and statistical inference. JASA 1927. It holds for few
    trials and for shares of 0 and 1, where hits ± 1.96 standard errors does not.
    """
    share, squared = _ratio(hits, trials), Z_95**2
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = (share + squared / (2 * trials)) / (1 + squared / trials)
        half = Z_95 * np.sqrt(share * (1 - share) / trials + squared / (4 * trials**2)) / (1 + squared / trials)
    interval: Floats = np.clip(np.column_stack([middle - half, middle + half]), 0.0, 1.0)
    return interval


def balanced_accuracy(confusion: Ints) -> float:
    """Return the mean accuracy over the classes in the test data."""
    return float(np.nanmean(class_accuracy(confusion)))


def macro_f1(confusion: Ints) -> float:
    """Return the mean F1 over the classes that are in the test data or predicted, as scikit-learn averages.

    A class that is never predicted counts as 0, and so does one that is predicted but not in the test data.
    """
    hits, actual, predicted = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    f1 = _ratio(2 * hits, actual + predicted)
    return float(np.nanmean(f1))


def shot_groups(train_counts: Ints, rule: ShotRule = "range") -> dict[str, Ints]:
    """Return the classes with many, medium and few training samples; no groups at all on nearly balanced data.

    There are groups if the most frequent class has at least twice the samples of the rarest.

    Args:
        train_counts: training samples of each class.
        rule: `range` cuts the range from the rarest class (n_min, at least one sample) to the most frequent
            (n_max) in three on a logarithmic scale: many from n_max^(2/3) n_min^(1/3) up, few below
            n_max^(1/3) n_min^(2/3). On an exponential tail these are about thirds of the classes, whatever their
            number (0-2, 3-5 and 6-9 of CIFAR-10's ten at IF 0.1; a class that lies on a limit, as at IF 0.008, may
            fall on either side); with a step profile there is no medium group. `share` goes by the share of all
            samples that more frequent classes hold: many below 75 %, medium below 95 %, few from there.
    """
    counts = train_counts.astype(float)
    if counts.max() < SHOT_RATIO * max(1.0, counts.min()):
        return {}
    many, few = _by_range(counts) if rule == "range" else _by_share(counts)
    groups = many, ~many & ~few, few & ~many
    return {name: np.flatnonzero(members) for name, members in zip(SHOTS, groups, strict=True)}


def _by_range(counts: Floats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    n_max, n_min = counts.max(), counts[counts > 0].min()
    upper, lower = n_max ** (2 / 3) * n_min ** (1 / 3), n_max ** (1 / 3) * n_min ** (2 / 3)
    slack = 1e-9  # the limits are rounded
    return counts >= upper * (1 - slack), counts < lower * (1 - slack)


def _by_share(counts: Floats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    larger = np.array([counts[counts > count].sum() for count in counts]) / counts.sum()
    return larger < MANY_SHARE, larger >= MEDIUM_SHARE


def summarise(confusion: Ints, train_counts: Ints, rule: ShotRule = "range") -> ClassificationMetrics:
    """Compute all metrics of one evaluation; `rule` as in `shot_groups`."""
    accuracy, groups = class_accuracy(confusion), shot_groups(train_counts, rule)
    return ClassificationMetrics(
        test_accuracy=float(np.diag(confusion).sum() / confusion.sum()),
        balanced_accuracy=balanced_accuracy(confusion),
        macro_f1=macro_f1(confusion),
        **{name: _mean_or_none(accuracy[groups[name]]) if groups else None for name in SHOTS},
        per_class_accuracy=tuple(None if np.isnan(value) else float(value) for value in accuracy),
    )


def _mean_or_none(values: Floats) -> float | None:
    present = values[~np.isnan(values)]
    return float(present.mean()) if len(present) else None


def _ratio(above: Ints, below: Ints) -> Floats:
    ratio: Floats = np.divide(above, below, out=np.full(len(below), np.nan), where=below > 0)
    return ratio
