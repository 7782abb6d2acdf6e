"""What a phase of a round brings the server: the numbers of those that answered, and sums over their uploads."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedwcm.core.types import Floats, Ints, LeftOut, Report
from fedwcm.engine.client import ClientUpdates
from fedwcm.engine.uploads import ClientUploads, UploadRows, UploadsLostError


@dataclass(frozen=True, eq=False)
class CohortUpdates:
    """The clients that answered, by ascending id. Their uploads may be here, or wherever they were made."""

    ids: Ints
    uploads: ClientUploads
    report: Report
    learning_rates: Floats
    loss: Floats
    accuracy: Floats
    left_out: Mapping[int, LeftOut]

    @classmethod
    def of(cls, updates: ClientUpdates, uploads: ClientUploads | None = None) -> "CohortUpdates":
        """Return the updates of all clients; their uploads are rows in memory unless they are elsewhere."""
        return cls(
            updates.ids,
            UploadRows(updates.upload) if uploads is None else uploads,
            updates.report,
            updates.learning_rates,
            updates.loss,
            updates.accuracy,
            updates.left_out,
        )

    def without(self, lost: UploadsLostError) -> "CohortUpdates":
        """Return the updates of those whose uploads remain."""
        kept = ~np.isin(self.ids, list(lost.clients))
        return replace(
            self,
            ids=self.ids[kept],
            uploads=lost.remaining,
            report={key: values[kept] for key, values in self.report.items()},
            learning_rates=self.learning_rates[kept],
            loss=self.loss[kept],
            accuracy=self.accuracy[kept],
            left_out={**self.left_out, **lost.clients},
        )
