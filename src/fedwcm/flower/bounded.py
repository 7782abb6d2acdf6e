"""Increments that clients scale down themselves: the server cannot see them, or wants to know how many were."""

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from fedwcm.engine.rounds import CLIPPED
from fedwcm.flower.records import REPORT, with_clipped


def bounded(answer: RecordDict, max_norm: float) -> RecordDict:
    """Return the answer with an increment of at most this norm, and whether the increment was longer.

    If a mod has already clipped the increment and reported it, the answer stays as it is.
    """
    if REPORT + CLIPPED in answer.metric_records["numbers"]:
        return answer
    upload = answer.array_records["upload"]
    increment = upload["delta"].numpy()
    norm = float(np.linalg.norm(increment.astype(np.float64)))
    if norm > max_norm:
        upload = ArrayRecord({**upload, "delta": Array((increment * (max_norm / norm)).astype(increment.dtype))})
    return RecordDict({**answer, "upload": upload, "numbers": with_clipped(answer, norm > max_norm)})
