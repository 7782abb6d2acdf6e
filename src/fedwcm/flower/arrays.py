"""Arrays from clients: their shape and type are known in advance, and checked before any data is unpacked."""

import io
from typing import Any

import numpy as np
import torch
from flwr.app import Array
from numpy.lib import format as npy
from torch import Tensor

from fedwcm.engine.backends.in_process import NOT_FINITE
from fedwcm.flower.untrusted import UnusableError


def tensor_like(name: str, array: Array, like: Tensor) -> Tensor:
    """Return the array as a tensor like the example: same shape and precision, finite numbers."""
    dtype, shape = str(like.dtype).removeprefix("torch."), tuple(like.shape)
    if array.dtype != dtype or tuple(array.shape) != shape:
        raise UnusableError(
            f"its upload {name!r} is {array.dtype} of shape {tuple(array.shape)}, not {dtype} of shape {shape}"
        )
    values = unpacked(name, array.data, np.dtype(dtype), shape)
    tensor = torch.from_numpy(values)
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise UnusableError(f"its upload {name!r} {NOT_FINITE}")
    return tensor


def unpacked(name: str, data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Read NumPy's format without trusting its header: no pickles, no archives, and no more data than was sent."""
    stream = io.BytesIO(data)
    try:
        version = npy.read_magic(stream)
        read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        inside, fortran, kind = read_header(stream)
    except Exception as error:  # whatever the bytes make NumPy's parser do, they are the client's fault
        raise UnusableError(f"its upload {name!r} cannot be read ({type(error).__name__})") from None
    start, expected = stream.tell(), dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if (kind, tuple(inside), len(data) - start) != (dtype, shape, expected) or (fortran and len(shape) > 1):
        raise UnusableError(f"its upload {name!r} does not have the expected type and size")
    return np.frombuffer(data, dtype, offset=start).reshape(shape).copy()
