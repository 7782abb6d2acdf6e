"""BatchNorm's running variances in a client's buffers: a negative one would make all outputs of the model NaN."""

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from torch import Tensor

from fedwcm.core.layout import Layout
from fedwcm.flower.untrusted import UnusableError

VARIANCE = "running_var"
"""The name that torch gives these buffers in every layer that has them."""


def require_variances(buffers: Tensor, layout: Layout) -> None:
    """Refuse flat buffers with a negative variance."""
    for name, values in layout.unflatten(buffers).items():
        if _is_variance(name) and bool((values < 0).any()):
            least = float(values.min())
            raise UnusableError(f"its upload 'buffers' has {least:.3g} in {name!r}: a variance must be 0 or more")


def with_variances(answer: RecordDict, layout: Layout) -> RecordDict:
    """Return the answer with 0 in place of negative variances, which noise may have made of small ones."""
    upload = answer.array_records["upload"]
    if "buffers" not in upload:
        return answer
    buffers = torch.from_numpy(np.array(upload["buffers"].numpy()))
    for name, values in layout.unflatten(buffers).items():
        if _is_variance(name):
            values.clamp_(min=0)
    return RecordDict({**answer, "upload": ArrayRecord({**upload, "buffers": Array(buffers.numpy())})})


def _is_variance(name: str) -> bool:
    return name.rpartition(".")[2] == VARIANCE
