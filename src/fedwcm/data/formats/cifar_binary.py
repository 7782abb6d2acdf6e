"""The binary version of CIFAR: records of label bytes followed by a 32x32 image, channel by channel."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.formats.archive import read_members
from fedwcm.data.samples import Parts, Samples

SIDE = 32
IMAGE_BYTES = 3 * SIDE * SIDE


def read_cifar_binary(path: Path, *, train: tuple[str, ...], test: str, label_bytes: int) -> Parts:
    """Read the named files of a folder or archive; of several label bytes the last (the finest) counts."""
    members = read_members(path, (*train, test))
    return Parts(
        _records(path, b"".join(members[name] for name in train), label_bytes),
        _records(path, members[test], label_bytes),
    )


def images_from_planes(planes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Turn rows of 3072 bytes (red, green, blue plane) into images (n, 32, 32, 3)."""
    return np.ascontiguousarray(planes.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1))


def _records(path: Path, data: bytes, label_bytes: int) -> Samples:
    size = label_bytes + IMAGE_BYTES
    if len(data) % size:
        raise ValueError(f"{path}: {len(data)} bytes of samples are not a multiple of the record size {size}")
    records = np.frombuffer(data, dtype=np.uint8).reshape(-1, size)
    return Samples(x=images_from_planes(records[:, label_bytes:]), y=records[:, label_bytes - 1])
