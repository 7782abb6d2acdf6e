"""The split that the data came with."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.partition.protocol import group_by_owner


@dataclass(frozen=True, kw_only=True, eq=False)
class Natural:
    """The split that the data came with: sample i belongs to client `client_ids[i]`.

    The ids are any integers; the clients are their distinct values, in rising order. Every sample is
    used once and nothing is random.
    """

    client_ids: NDArray[np.int64]

    def __post_init__(self) -> None:
        ids = np.array(self.client_ids)
        if ids.ndim != 1 or ids.size == 0 or not np.issubdtype(ids.dtype, np.integer):
            raise ValueError(
                "client_ids must be a non-empty one-dimensional integer array, "
                f"got shape {ids.shape} of {ids.dtype}"
            )
        ids.flags.writeable = False
        object.__setattr__(self, "client_ids", ids)

    @property
    def clients(self) -> int:
        """The number of distinct ids."""
        return int(np.unique(self.client_ids).size)

    def __call__(self, labels: NDArray[np.int64], rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """Split the samples over the clients."""
        ids, owner = np.unique(self.client_ids, return_inverse=True)
        if owner.size != np.size(labels):
            raise ValueError(
                f"client_ids must hold one id for each of the {np.size(labels)} labels, got {owner.size}"
            )
        return group_by_owner(owner, ids.size)
