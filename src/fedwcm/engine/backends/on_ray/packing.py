"""Objects as bytes and large arrays beside them, which Ray keeps in memory that all processes of a node share.

Ray does so with NumPy's arrays but not with tensors, which it would copy for each process. A tensor comes back as
one on the device of the process that unpacks it.
"""

import io
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ray import cloudpickle
from torch import Tensor

Packed = tuple[bytes, list[NDArray[np.uint8]]]
"""A pickle, and the buffers that are not in it."""

_DEVICE: ContextVar[torch.device] = ContextVar("device")


def pack(value: object) -> Packed:
    """Return the value as bytes, with the memory of its arrays and tensors beside, not copied."""
    file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    pickler: Any = _Pickler
    pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
    return file.getvalue(), [np.frombuffer(buffer.raw(), dtype=np.uint8) for buffer in buffers]


def unpack(packed: Packed, device: torch.device) -> Any:
    """Return the value. Its arrays, and on a CPU its tensors, are the packed memory: to be read only."""
    data, buffers = packed
    with _restored_on(device):
        return pickle.loads(data, buffers=buffers)


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Tensor and obj.dtype != torch.bfloat16:
            return _tensor, (obj.detach().cpu().numpy(),)
        if isinstance(obj, torch.device):
            return _device, ()
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]


def _tensor(array: NDArray[Any]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an array that must not be written to: nobody does
        return torch.from_numpy(array).to(_device())


def _device() -> torch.device:
    return _DEVICE.get()


@contextmanager
def _restored_on(device: torch.device) -> Iterator[None]:
    token = _DEVICE.set(device)
    try:
        yield
    finally:
        _DEVICE.reset(token)
