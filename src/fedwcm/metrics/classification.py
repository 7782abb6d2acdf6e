"""Accuracy overall, per class and per shot; balanced accuracy and macro F1 for test sets with a long tail."""

from dataclasses import dataclass

import numpy as np

from fedwcm.core.types import Floats, Ints


@dataclass(frozen=True)
class ClassificationMetrics:
    """All metrics of one evaluation; None where a class or a group of classes has no test samples."""

    test_accuracy: float
    balanced_accuracy: float
    macro_f1: float
    many: float | None
    medium: float | None
    few: float | None
    per_class_accuracy: tuple[float | None, ...]


def class_accuracy(confusion: Ints) -> Floats:
    """Accuracy of each class; NaN for a class without test samples."""
    return _ratio(np.diag(confusion), confusion.sum(axis=1))


def balanced_accuracy(confusion: Ints) -> float:
    """Mean accuracy over the classes in the test data."""
    return float(np.nanmean(class_accuracy(confusion)))


def macro_f1(confusion: Ints) -> float:
    """Mean F1 over the classes in the test data; a class that is never predicted counts as 0."""
    hits, actual, predicted = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    f1 = _ratio(2 * hits, actual + predicted)
    return float(f1[actual > 0].mean())


def shot_groups(train_counts: Ints) -> dict[str, Ints]:
    """Classes with many, medium and few training samples.

    The range from the rarest class (n_min, at least one sample) to the most frequent (n_max) is cut in three on
    a logarithmic scale: many from n_max^(2/3) n_min^(1/3) up, few below n_max^(1/3) n_min^(2/3). On an exponential
    tail these are thirds of the classes, whatever their number (0-2, 3-5 and 6-9 of CIFAR-10's ten); with a step
    profile there is no medium group; on balanced data all classes are in `many`.
    """
    counts = train_counts.astype(float)
    n_max, n_min = counts.max(), counts[counts > 0].min()
    upper, lower = n_max ** (2 / 3) * n_min ** (1 / 3), n_max ** (1 / 3) * n_min ** (2 / 3)
    slack = 1e-9  # rounding must not put n_max = n_min below the product of its own roots
    many, few = counts >= upper * (1 - slack), counts < lower * (1 - slack)
    return {
        "many": np.flatnonzero(many),
        "medium": np.flatnonzero(~many & ~few),
        "few": np.flatnonzero(few & ~many),
    }


def summarise(confusion: Ints, train_counts: Ints) -> ClassificationMetrics:
    """Compute all metrics of one evaluation."""
    accuracy = class_accuracy(confusion)
    groups = {name: _mean_or_none(accuracy[classes]) for name, classes in shot_groups(train_counts).items()}
    return ClassificationMetrics(
        test_accuracy=float(np.diag(confusion).sum() / confusion.sum()),
        balanced_accuracy=balanced_accuracy(confusion),
        macro_f1=macro_f1(confusion),
        **groups,
        per_class_accuracy=tuple(None if np.isnan(value) else float(value) for value in accuracy),
    )


def _mean_or_none(values: Floats) -> float | None:
    present = values[~np.isnan(values)]
    return float(present.mean()) if len(present) else None


def _ratio(above: Ints, below: Ints) -> Floats:
    ratio: Floats = np.divide(above, below, out=np.full(len(below), np.nan), where=below > 0)
    return ratio
