"""What all clients add up before round 1: their samples per class, and how far each of them is from the target.

Only the sums are needed, so under encryption, which adds up whole numbers, the server learns nothing else. But the
sum of exact distances, next to the class totals and every client's number of samples, may determine the counts of
each client. Distances in levels leave many possibilities, as they do for scores (`core/disclosure.py`).
"""

import numpy as np

from fedwcm.balance import checked_distribution, local_deviations
from fedwcm.core.disclosure import in_levels, number_of_levels
from fedwcm.core.types import Floats, Ints

UNIT = 2.0**-20
"""A distance is a whole number of these, so that its sum is exact in any order."""

FARTHEST = 2.0
"""No distribution is farther from another, so no mean of such distances is larger, whatever clients send."""


def addends(counts: Ints, target: Floats | None, levels: int | None) -> Ints:
    """Return what clients with these counts `(K, C)` add: the counts and ‖p̂ − p_k‖₁ in units, `(K, C + 1)`.

    `levels` is the number of different distances that a client may have at most; None adds exact ones.
    """
    wanted = checked_distribution("run.target", target, counts.shape[1])
    distances = local_deviations(counts, wanted)
    if levels is not None:
        farthest = float(2 * (1 - wanted.min()))
        distances = in_levels(distances, number_of_levels(counts.sum(axis=1), levels), 0.0, farthest)
    return np.column_stack([counts, np.rint(distances / UNIT).astype(np.int64)])


def read_sum(total: Ints, clients: int) -> tuple[Ints, float]:
    """Return the class totals, and the mean distance of the clients from the target."""
    return total[:-1], min(float(total[-1]) * UNIT / clients, FARTHEST)
