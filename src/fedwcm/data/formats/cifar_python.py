"""The Python version of CIFAR: an archive of pickles.

A pickle can run any code, so two gates stand before it. The archive must have the published checksum, and
the pickles are read by an unpickler that knows four names only, each replaced by a harmless stand-in: not
even NumPy's own unpickling code is run.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.formats.archive import read_members
from fedwcm.data.formats.cifar_binary import IMAGE_BYTES, images_from_planes
from fedwcm.data.samples import Parts, Samples


def read_cifar_python(archive: Path, *, train: tuple[str, ...], test: str, label_key: str, checksum: str) -> Parts:
    """Read the named pickles of the archive, if it has the published MD5 checksum."""
    import pooch

    actual = pooch.file_hash(str(archive), alg="md5")
    if actual != checksum:
        raise ValueError(
            f"{archive} has MD5 {actual}, not the published {checksum}: a pickle that is not the published "
            "one is never opened. Download it again, or use the binary version"
        )
    members = read_members(archive, (*train, test))
    batches = [_read_batch(members[name], label_key) for name in train]
    joined = Samples(np.concatenate([b.x for b in batches]), np.concatenate([b.y for b in batches]))
    return Parts(joined, _read_batch(members[test], label_key))


def _read_batch(data: bytes, label_key: str) -> Samples:
    batch = _CifarUnpickler(io.BytesIO(data), encoding="latin1").load()
    images: NDArray[np.uint8] = batch["data"].values
    return Samples(images_from_planes(images.reshape(-1, IMAGE_BYTES)), np.array(batch[label_key], dtype=np.int64))


class _ByteArray:
    """Stand-in for a pickled NumPy array; takes unsigned bytes only."""

    values: NDArray[np.uint8]

    def __setstate__(self, state: tuple[int, tuple[int, ...], "_ByteType", bool, bytes | str]) -> None:
        _, shape, _, column_major, raw = state
        content = raw.encode("latin1") if isinstance(raw, str) else raw
        flat = np.frombuffer(content, dtype=np.uint8)
        self.values = flat.reshape(shape, order="F" if column_major else "C")


class _ByteType:
    """Stand-in for a pickled NumPy dtype; refuses all but unsigned bytes."""

    def __init__(self, code: str, *_: Any) -> None:
        if code != "u1":
            raise ValueError(f"refused: the pickle holds an array of type {code!r}, not of unsigned bytes")

    def __setstate__(self, state: Any) -> None:
        """Ignore byte order and alignment, which mean nothing for bytes."""


def _new_array(*_: Any) -> _ByteArray:
    return _ByteArray()


def _latin1(text: str, encoding: str) -> bytes:
    """Stand-in for `codecs.encode`, by which newer pickles write bytes."""
    return text.encode("latin1")


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _new_array,
    ("numpy._core.multiarray", "_reconstruct"): _new_array,
    ("numpy", "ndarray"): _ByteArray,
    ("numpy", "dtype"): _ByteType,
    ("_codecs", "encode"): _latin1,
}


class _CifarUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise ValueError(f"refused: the pickle asks for {module}.{name}")
        return _ADMITTED[module, name]
