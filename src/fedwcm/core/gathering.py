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


def contributions(counts: Ints, target: Floats | None, levels: int | None, shift: int = 0) -> Ints:
    """Return what clients with these counts `(K, C)` add: the counts and ‖p̂ − p_k‖₁ in units, `(K, C + 1)`.

    `levels` is the number of different distances that a client may have at most; None adds exact ones. Noise makes
    counts negative, which encryption cannot add, so `shift` is added to each of them: 0 if there is no noise.
    """
    wanted = checked_distribution("run.target", target, counts.shape[1])
    plausible = as_counts(counts) if shift else counts
    distances = local_deviations(plausible, wanted)
    if levels is not None:
        farthest = float(2 * (1 - wanted.min()))
        distances = in_levels(distances, number_of_levels(plausible.sum(axis=1), levels), 0.0, farthest)
    return np.column_stack([counts + shift, np.rint(distances / UNIT).astype(np.int64)])


def decode_total(total: Ints, clients: int, shift: int = 0) -> tuple[Ints, float]:
    """Return the class totals, and the mean distance of the clients from the target."""
    totals = as_counts(total[None, :-1] - clients * shift)[0] if shift else total[:-1]
    return totals, min(float(total[-1]) * UNIT / clients, FARTHEST)


def as_counts(noisy: Ints) -> Ints:
    """Return possible counts for rows with noise: none below 0, and a sample of each class in place of none."""
    counts: Ints = np.maximum(noisy, 0)
    counts[~counts.any(axis=1)] = 1
    return counts
