"""Tell whether data are the same as before: what was read, and how it was divided."""

import hashlib
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.dataset import Dataset

MOST_BYTES = 2**28
"""Bytes of an array up to which all rows are read; of a larger one, evenly spaced rows. Labels count in full."""

CHUNK = 100
"""Samples copied at a time."""


def fingerprint(dataset: Dataset) -> str:
    """Digest the samples, the labels and who belongs to the training and to the test part."""
    parts = ((dataset.x_train, dataset.y_train), (dataset.x_test, dataset.y_test))
    return array_digest(np.array(dataset.classes), *(array for x, y in parts for array in (*sample_rows(x), y)))


def sample_rows(x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the shape of an array, and the rows of it that a digest reads."""
    return np.array(x.shape), x[:: -(-x.nbytes // MOST_BYTES) or 1]


def array_digest(*arrays: NDArray[Any]) -> str:
    """Return a digest of these arrays."""
    total = hashlib.blake2b(digest_size=8)
    for array in arrays:
        total.update(f"{array.dtype} {array.shape}".encode())
        rows = np.atleast_1d(array)
        for start in range(0, len(rows), CHUNK):
            total.update(np.ascontiguousarray(rows[start : start + CHUNK]).tobytes())
    return total.hexdigest()


def table_digest(*tables: Any) -> str:
    """Return a digest of these pyarrow tables."""
    import pyarrow as pa

    sink = _HashingFile()
    for table in tables:
        with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), table.schema.remove_metadata()) as stream:
            stream.write_table(table.replace_schema_metadata())
    return sink.total.hexdigest()


class _HashingFile(io.RawIOBase):
    """A file that keeps nothing but the digest of what is written to it."""

    def __init__(self) -> None:
        self.total = hashlib.blake2b(digest_size=8)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.total.update(data)
        return len(data)
