"""Increments that a client scales down itself, where the server cannot: it does not see them, or asks how many."""

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from fedwcm.engine.rounds import CLIPPED
from fedwcm.flower.records import REPORT, with_clipped


def bounded(answer: RecordDict, max_norm: float) -> RecordDict:
    """Return the answer with an increment of at most this norm; it says whether it was longer.

    What a mod has clipped and said stays as it is.
    """
    if REPORT + CLIPPED in answer.metric_records["numbers"]:
        return answer
    upload = answer.array_records["upload"]
    increment = upload["delta"].numpy()
    norm = float(np.linalg.norm(increment.astype(np.float64)))
    if norm > max_norm:
        upload = ArrayRecord({**upload, "delta": Array((increment * (max_norm / norm)).astype(increment.dtype))})
    return RecordDict({**answer, "upload": upload, "numbers": with_clipped(answer, norm > max_norm)})
