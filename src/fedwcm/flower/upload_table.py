"""The usable answers of a phase, stored as they arrive, in the order of the clients' numbers.

Each client has a row; sums over rows then have the same order as in the simulator, whoever answered first. A large
table is a file, of which the system keeps in memory what it has room for.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedwcm.core.types import Floats, Ints, State
from fedwcm.engine.backends.in_process import no_updates
from fedwcm.engine.client import ClientUpdates
from fedwcm.utils.temporary_pages import temporary_pages

IN_MEMORY = 2**28
"""Size in bytes up to which uploads stay in memory."""
TOO_LONG = 1000.0
"""How many times longer an upload may be than the model and the usual upload of the others together."""


class UploadTable:
    """Rows of uploads and numbers, one for each client that was asked.

    Args:
        ids: the clients that were asked, ascending.
        like: an example of an answer.
        folder: where a file for the rows is made, if they need one; None for the system's temporary folder.
    """

    def __init__(self, ids: Ints, like: ClientUpdates, folder: Path | None) -> None:
        self._ids, self._like = ids, like
        self._upload: State = {key: _rows(len(ids), value[0], folder) for key, value in like.upload.items()}
        self._results: dict[int, ClientUpdates] = {}
        self._norms: dict[str, Floats] = {key: np.zeros(len(ids)) for key in like.upload}

    def put(self, result: ClientUpdates) -> None:
        """Store one client's answer."""
        row = int(np.searchsorted(self._ids, result.ids[0]))
        for key, value in result.upload.items():
            self._upload[key][row] = value[0]
            self._norms[key][row] = float(torch.linalg.vector_norm(value.double()))
        self._results[row] = replace(result, upload={})

    def drop_outliers(self, scale: float) -> dict[int, str]:
        """Drop the answers that only a faulty client would give; return the clients with the reason.

        An upload is too long if it is out of all proportion to the model, whose norm is `scale`, and to what the
        others sent. Where a whole federation diverges, all uploads are long, and none is dropped.
        """
        rows, faults = sorted(self._results), {}
        for key, norms in self._norms.items():
            for row in rows:
                others = np.sort(norms[[other for other in rows if other != row]])
                usual = float(others[(len(others) - 1) // 2]) if len(others) else 0.0
                if norms[row] > TOO_LONG * (scale + usual):
                    reason = f"its upload {key!r} has norm {norms[row]:.3g}, that of others is {usual:.3g}"
                    faults[row] = reason
        for row in faults:
            del self._results[row]
        return {int(self._ids[row]): reason for row, reason in faults.items()}

    def result(self) -> ClientUpdates:
        """The rows of those that answered, by ascending number. The table cannot be used afterwards."""
        rows = sorted(self._results)
        if not rows:
            return no_updates({})
        for place, row in enumerate(rows):
            if place != row:
                for column in self._upload.values():
                    column[place] = column[row]
        results = [self._results[row] for row in rows]
        return replace(
            self._like,
            ids=self._ids[rows],
            upload={key: column[: len(rows)] for key, column in self._upload.items()},
            report={key: np.concatenate([r.report[key] for r in results]) for key in self._like.report},
            state={},
            learning_rates=np.concatenate([r.learning_rates for r in results]),
            loss=np.concatenate([r.loss for r in results]),
            accuracy=np.concatenate([r.accuracy for r in results]),
        )


def _rows(count: int, row: Tensor, folder: Path | None) -> Tensor:
    """Space for this many rows: in memory, or in an unnamed file that is freed with the tensor."""
    size = count * row.numel() * row.element_size()
    if size <= IN_MEMORY or row.device.type != "cpu":
        return row.new_empty(count, *row.shape)
    pages = temporary_pages(size, "the uploads of a round", folder)
    return torch.frombuffer(pages, dtype=torch.uint8).view(row.dtype).view(count, *row.shape)
