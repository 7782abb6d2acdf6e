"""Angles between the rows of a classifier, which reveal minority collapse.

On balanced data the rows of a well trained classifier are as far apart as possible, each pair at an angle of
arccos(−1 / (C − 1)). On a long tail the rows of rare classes move together and may end up parallel: minority
collapse.

Sources: Fang et al., "Exploring deep neural networks via layer-peeled model", 2021.
"""

import numpy as np

from fedwcm.core.types import Floats


def mean_angle(rows: Floats) -> float | None:
    """The mean angle in degrees over all pairs of rows, without rows of zeros; None if there is no pair."""
    from scipy.spatial.distance import pdist  # here: most runs do not need scipy

    directed = rows[np.abs(rows).max(axis=1, initial=0) > 0]
    if len(directed) < 2:
        return None
    cosines = 1 - pdist(directed.astype(float), metric="cosine")
    return float(np.degrees(np.arccos(np.clip(cosines, -1, 1))).mean())
