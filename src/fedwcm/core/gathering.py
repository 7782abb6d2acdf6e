"""What all clients add up before round 1: their samples per class, and how far each of them is from the target.

Only the sums are needed. Under encryption the server learns nothing else, so both are added up in whole numbers.
"""

import numpy as np

from fedwcm.balance import local_deviations
from fedwcm.core.types import Floats, Ints

UNIT = 2.0**-20
"""A distance is a whole number of these, so that its sum is exact in any order."""

FARTHEST = 2.0
"""No distribution is farther from another, so no mean of such distances is larger, whatever clients send."""


def addends(counts: Ints, target: Floats | None) -> Ints:
    """Return what clients with these counts `(K, C)` add: the counts and ‖p̂ − p_k‖₁ in units, `(K, C + 1)`."""
    distances = np.rint(local_deviations(counts, target) / UNIT).astype(np.int64)
    return np.column_stack([counts, distances])


def read_sum(total: Ints, clients: int) -> tuple[Ints, float]:
    """Return the class totals, and the mean distance of the clients from the target."""
    return total[:-1], min(float(total[-1]) * UNIT / clients, FARTHEST)
