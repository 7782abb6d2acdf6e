"""Accuracy of each client, and how it is spread over the clients."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwcm.core.types import Floats, Ints
from fedwcm.engine.evaluate import Evaluation
from fedwcm.metrics.classification import class_accuracy

WORST_SHARE = 0.1
"""Share of the clients that makes up the worst decile."""


@dataclass(frozen=True, eq=False)
class OnOwnSamples:
    """The accuracy on those test samples that belong to the client: `ids[i]` is a position in `names`."""

    names: tuple[str, ...]
    ids: Ints

    @classmethod
    def of(cls, owners: NDArray[Any]) -> "OnOwnSamples":
        names, ids = np.unique(owners, return_inverse=True)
        return cls(tuple(map(str, names)), ids)

    def __call__(self, tested: Evaluation) -> Floats:
        """Return the accuracy of each client, from an evaluation on the test data."""
        hits: Floats = np.bincount(self.ids, weights=tested.correct) / np.bincount(self.ids)
        return hits

    def rows(self, client: int) -> Tensor:
        """Return the test samples that a model of this client alone is tested on."""
        return torch.from_numpy(np.flatnonzero(self.ids == client))

    def of_one(self, client: int, tested: Evaluation) -> float:
        """Return the accuracy of this client, from an evaluation of its own model on those."""
        return float(tested.correct.mean())


@dataclass(frozen=True, eq=False)
class ByOwnClasses:
    """For test data that belong to nobody: accuracies of the classes, weighted as the client's classes are.

    It is the expected accuracy on test samples drawn with the client's own class shares. Classes without test
    samples are left out of the shares. Clients without names of their own are called by their numbers.
    """

    counts: Ints
    own_names: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return self.own_names or tuple(map(str, range(len(self.counts))))

    def __call__(self, tested: Evaluation) -> Floats:
        """Return the accuracy of each client; NaN for one without samples of a tested class."""
        accuracy = class_accuracy(tested.confusion)
        counts = np.where(np.isnan(accuracy), 0, self.counts)
        total = counts.sum(axis=1)
        hits: Floats = counts @ np.nan_to_num(accuracy)
        result: Floats = np.divide(hits, total, out=np.full(len(total), np.nan), where=total > 0)
        return result

    def rows(self, client: int) -> slice:
        """Return all test samples, whoever's model is tested."""
        return slice(None)

    def of_one(self, client: int, tested: Evaluation) -> float:
        """Return the accuracy of this client, from an evaluation of its own model."""
        return float(self(tested)[client])


ClientAccuracy = OnOwnSamples | ByOwnClasses
"""Tells the accuracy of each client from an evaluation on the test data."""


def spread_over_clients(accuracy: Floats) -> dict[str, float]:
    """Return the mean over the clients, that of the worst tenth, and the standard deviation; each counts once."""
    known = np.sort(accuracy[~np.isnan(accuracy)])
    if not len(known):
        return {}
    worst = known[: math.ceil(WORST_SHARE * len(known))]
    return {
        "client_mean": float(known.mean()),
        "client_worst_decile": float(worst.mean()),
        "client_std": float(known.std()),
    }


def name_accuracies(accuracy: Floats, names: tuple[str, ...]) -> dict[str, float]:
    """Return the accuracy of each client that can be tested, by its name."""
    pairs = zip(names, accuracy.tolist(), strict=True)
    return {name: value for name, value in pairs if not math.isnan(value)}
